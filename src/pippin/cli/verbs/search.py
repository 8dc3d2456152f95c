"""`pippin search`: finds MLX models on the hub."""

import asyncio
import json
from collections.abc import Sequence
from typing import Final

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, settings_of
from pippin.cli.terminal import say, table

MOST: Final = 20


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin search", description="Find MLX models on the hub, the most downloaded first."
    )
    parser.add_argument("words", nargs="+", help="words of a model's name")
    parser.add_argument(
        "--limit", type=int, default=MOST, metavar="COUNT", help=f"how many (default: {MOST})"
    )
    parser.add_argument("--all", action="store_true", help="models without the tag mlx too")
    parser.add_argument("--json", action="store_true", help="as JSON")
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    catalog = open_catalog(settings_of(parsed))
    found = asyncio.run(
        catalog.search(" ".join(parsed.words), limit=max(1, parsed.limit), mlx_only=not parsed.all)
    )
    if parsed.json:
        say(json.dumps(msgspec.to_builtins(found), indent=2))
    elif found:
        rows = [(each.id, f"{each.downloads:,}", each.task or "-") for each in found]
        say(table(("MODEL", "DOWNLOADS", "TASK"), rows))
        say(f"Will it fit? pippin fit {found[0].id}    Fetch it: pippin pull {found[0].id}")
    else:
        more = "" if parsed.all else " --all looks among models without the tag mlx too."
        say(f"The hub has no model with these words.{more} `pippin recommend` names models for this machine.")
    return 0 if found else 1
