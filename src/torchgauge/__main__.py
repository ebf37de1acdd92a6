"""`python -m torchgauge`."""

from __future__ import annotations

import sys

from torchgauge.cli import main

if __name__ == "__main__":
    sys.exit(main())
