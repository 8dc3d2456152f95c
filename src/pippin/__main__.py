"""`python -m pippin` is the command `pippin`."""

import sys

from pippin.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
