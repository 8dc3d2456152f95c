"""`pippin pull`: downloads a model into the cache that all tools share."""

import asyncio
from collections.abc import Sequence

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, settings_of
from pippin.cli.terminal import progress, size
from pippin.config.settings import GivenFlag


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="pippin pull", description="Download a model; what was fetched before is not fetched again."
    )
    parser.add_argument("model", help="a repository (org/name) or an alias")
    parser.add_argument("--timeout", metavar="SECONDS", help="seconds without data before a new try")
    parser.add_argument("--retries", metavar="COUNT", help="tries after a failed one")
    parser.add_argument("--mllm", action="store_true", help="accepted and not needed")
    some_options(parser, OPTIONS)
    parsed = parser.parse(arguments)
    for flag, text in (("--download-timeout", parsed.timeout), ("--download-retries", parsed.retries)):
        if text is not None:
            parsed.given.append(GivenFlag(flag, text))
    catalog = open_catalog(settings_of(parsed))
    with progress(parsed.model, bytes_counted=True) as tell:
        info = asyncio.run(catalog.ensure(parsed.model, tell, by_operator=True))
    print(f"{info.id} is here ({size(info.size_bytes)}). Serve it: pippin serve {info.id}")
    return 0
