"""`pippin bench`: measures the running server."""

import json
from argparse import Namespace
from itertools import product
from pathlib import Path

import msgspec

from pippin.cli.arguments import KEEP, SERVER, argument, of_catalog, verb
from pippin.cli.terminal import say
from pippin.config.errors import ConfigError


@verb(
    "bench",
    "Measure the running server, or one started for it, at each of the lengths and clients.",
    argument("model", nargs="?", help="the model; the one that is served if not given"),
    argument("--prompt", default="128", metavar="WORDS", help="lengths of prompts (default: 128)"),
    argument("--answer", default="64", metavar="TOKENS", help="lengths of answers (default: 64)"),
    argument("--clients", default="1,4,16", metavar="COUNTS", help="clients at once (default: 1,4,16)"),
    argument("--requests", type=int, default=2, metavar="COUNT", help="requests of each (default: 2)"),
    argument("--json", metavar="FILE", help="write what was measured as JSON"),
    KEEP,
    *SERVER,
    of_catalog,
)
def bench(parsed: Namespace) -> int:
    from pippin.cli.bench import measure, shown
    from pippin.cli.chat.server import reached

    combinations = product(
        counts("--prompt", parsed.prompt),
        counts("--answer", parsed.answer),
        counts("--clients", parsed.clients),
    )
    points = []
    with reached(parsed, parsed.model) as server:
        for point in measure(server.client, server.model, combinations, max(1, parsed.requests)):
            points.append(point)
            say(f"{point.clients} at once: {point.rate:.1f} tokens/s")
        say("\n" + shown(points))
        if parsed.json:
            told = {"model": server.model, "address": server.client.address, "points": points}
            text = json.dumps(msgspec.to_builtins(told), indent=2)
            Path(parsed.json).expanduser().write_text(text + "\n")
    return 0


def counts(flag: str, text: str) -> list[int]:
    """Positive whole numbers separated by commas. Raises `ConfigError`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"{flag} {text}: takes whole numbers from 1, with commas, as in {flag} 1,4,16.")
    return [int(word) for word in words]
