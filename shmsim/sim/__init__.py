"""The model: plans carried out in virtual time."""
