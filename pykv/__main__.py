"""`python -m pykv` is the `pykv` command."""

import sys

from pykv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
