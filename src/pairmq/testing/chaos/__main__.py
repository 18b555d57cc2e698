"""``python -m pairmq.testing.chaos``: see docs/how-to/run-chaos.md."""

from __future__ import annotations

import sys

from pairmq.testing.chaos._command import main

if __name__ == "__main__":
    sys.exit(main())
