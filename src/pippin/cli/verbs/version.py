"""`pippin version`."""

from collections.abc import Sequence

import pippin
from pippin.cli.arguments import Parser


def new_parser() -> Parser:
    return Parser(prog="pippin version", description="Show the version.")


def run(arguments: Sequence[str]) -> int:
    new_parser().parse(arguments)
    print(f"pippin {pippin.__version__}")
    return 0
