"""How far from optimal a way to wait is: replays of recorded waits, and what no policy can beat."""
