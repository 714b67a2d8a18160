"""The folder's stand-ins are imported by name, here as in the notebooks of the browser tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
