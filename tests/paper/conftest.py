"""The paper is no package that is installed: it is found from the root of the project."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
