from __future__ import annotations

import sys
from pathlib import Path

# The runners beside the tests are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
