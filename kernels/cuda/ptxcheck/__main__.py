"""``python -m qsa.kernels.cuda.ptxcheck``: see ``table.py``."""

import sys

from .table import main

if __name__ == "__main__":
    sys.exit(main())
