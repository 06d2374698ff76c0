"""Where ``realrun`` begins; see `shmsim.entry`."""

from shmsim.entry import start


def main() -> None:
    """Run ``realrun``."""
    start("realrun.cli")
