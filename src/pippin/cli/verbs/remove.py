"""`pippin rm`: deletes a model's files."""

import sys
from collections.abc import Sequence

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, settings_of


def new_parser() -> Parser:
    parser = Parser(prog="pippin rm", description="Delete a model's files from this machine.")
    parser.add_argument(
        "model", nargs="+", help="a model's whole name; a folder of your own is never deleted"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    catalog = open_catalog(settings_of(parsed))
    for name in parsed.model:
        if not parsed.yes and not _agreed(name):
            print(f"{name} stays.")
            continue
        print(f"{catalog.remove(name).found.id} is deleted.")
    return 0


def _agreed(name: str) -> bool:
    if not sys.stdin.isatty():
        return True  # scripts are not asked
    return input(f"Delete {name}? [y/N] ").strip().lower() in ("y", "yes")
