"""An additional API process: `python -m pippin.cli.answering FD`, where FD is the channel to the first process."""

import sys

from pippin.api.answering import answer
from pippin.cli.local import open_catalog

if __name__ == "__main__":
    answer(int(sys.argv[1]), open_catalog)
