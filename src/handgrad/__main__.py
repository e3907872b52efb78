"""`python -m handgrad`: the command line."""

import sys

from handgrad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
