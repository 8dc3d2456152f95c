"""`pippin pull`: downloads a model into the hub cache that all tools share."""

import asyncio
import sys
from collections.abc import Sequence

from pippin.catalog.catalog import Catalog, DownloadProgress
from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, settings_of
from pippin.cli.terminal import progress, say, size
from pippin.config.settings import GivenFlag
from pippin.core.models import ModelInfo


async def _pull(catalog: Catalog, name: str, on_progress: DownloadProgress) -> ModelInfo:
    """Download a model, and the other files that it needs."""
    info = await catalog.ensure(name, on_progress, by_operator=True)
    await catalog.complete(info, on_progress, by_operator=True)
    return info


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin pull", description="Download a model; what was fetched before is not fetched again."
    )
    parser.add_argument("model", help="a repository (org/name) or an alias")
    parser.add_argument("--timeout", metavar="SECONDS", help="seconds without data before a new try")
    parser.add_argument("--retries", metavar="COUNT", help="tries after a failed one")
    parser.add_argument("--mllm", action="store_true", help="accepted and not needed")
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    for flag, text in (("--download-timeout", parsed.timeout), ("--download-retries", parsed.retries)):
        if text is not None:
            parsed.given.append(GivenFlag(flag, text))
    catalog = open_catalog(settings_of(parsed))
    try:
        with progress("Downloading", bytes_counted=True) as tell:
            info = asyncio.run(_pull(catalog, parsed.model, tell))
    except KeyboardInterrupt:
        say(f"Stopped. `pippin pull {parsed.model}` goes on from here.", sys.stderr)
        raise
    say(f"{info.id} is here ({size(info.size_bytes)}).")
    chats = info.kind == "language" and info.capabilities.chat
    talk = f"Talk to it: pippin run {info.id}    " if chats else ""
    say(f"{talk}Serve it: pippin serve {info.id}")
    return 0
