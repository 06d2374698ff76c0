"""From a policy to the settings that a serving engine really has, in its own units."""
