"""`pippin bench`: measures the running server."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS
from pippin.cli.terminal import say
from pippin.config.errors import ConfigError

if TYPE_CHECKING:
    from pippin.cli.chat.server import Reached


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    from pippin.cli.chat.server import reached

    with reached(parsed, parsed.model) as server:
        return _sweep(parsed, server)


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin bench",
        description="Measure the running server, or one started for it, at each of the lengths and clients.",
    )
    parser.add_argument("model", nargs="?", help="the model; the one that is served if not given")
    parser.add_argument("--prompt", default="128", metavar="WORDS", help="lengths of prompts (default: 128)")
    parser.add_argument("--answer", default="64", metavar="TOKENS", help="lengths of answers (default: 64)")
    parser.add_argument(
        "--clients", default="1,4,16", metavar="COUNTS", help="clients at once (default: 1,4,16)"
    )
    parser.add_argument(
        "--requests", type=int, default=2, metavar="COUNT", help="requests of each (default: 2)"
    )
    parser.add_argument("--json", metavar="FILE", help="write what was measured as JSON")
    parser.add_argument("--keep", action="store_true", help="keep a server that was started for this")
    parser.add_argument("--server", help="address of the server; the one running here if not given")
    parser.add_argument("--api-key", help="key to show it; PIPPIN_API_KEY if not given")
    some_options(parser, OPTIONS)
    return parser


def _sweep(parsed: Namespace, server: "Reached") -> int:
    from pippin.cli.bench import Report, Sweep, measure, shown

    sweep = Sweep(
        counts("--prompt", parsed.prompt),
        counts("--answer", parsed.answer),
        counts("--clients", parsed.clients),
        max(1, parsed.requests),
    )
    points = []
    for point in measure(server.client, server.model, sweep):
        points.append(point)
        say(f"{point.clients} at once: {point.rate:.1f} tokens/s")
    say("\n" + shown(points))
    if parsed.json:
        report = Report(server.model, server.client.address, points)
        Path(parsed.json).expanduser().write_text(json.dumps(msgspec.to_builtins(report), indent=2) + "\n")
    return 0


def counts(flag: str, text: str) -> list[int]:
    """Positive whole numbers separated by commas. Raises `ConfigError`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"{flag} {text}: takes whole numbers from 1, with commas, as in {flag} 1,4,16.")
    return [int(word) for word in words]
