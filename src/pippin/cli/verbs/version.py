"""`pippin version`."""

from collections.abc import Sequence

import pippin


def run(arguments: Sequence[str]) -> int:
    print(f"pippin {pippin.__version__}")
    return 0
