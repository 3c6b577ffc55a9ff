"""`python -m octavo_adapters.kserve`."""

from __future__ import annotations

import sys

from octavo_adapters.kserve.serve import main

if __name__ == "__main__":
    sys.exit(main())
