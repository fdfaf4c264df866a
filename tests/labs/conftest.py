"""Lets the tests of the labs import their shared reader: pytest's importlib mode adds no folder to the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
