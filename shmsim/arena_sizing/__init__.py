"""How many slots of which sizes an arena needs, from what is to pass through it."""
