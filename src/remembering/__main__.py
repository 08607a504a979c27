"""Entry point of `python -m remembering`."""

import sys

from remembering.cli import main

if __name__ == "__main__":
    sys.exit(main())
