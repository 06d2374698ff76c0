"""Data of others that some tests read where it is there; it is no part of the project."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no data of others in {DATA}")
