"""The decoder that computing devices run: real arithmetic on random weights."""
