"""`pippin worker`: runs a model, or a part of one, for a server on another machine, which starts it through ssh."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pippin.cli.arguments import Parser
from pippin.cli.local import open_catalog
from pippin.cli.terminal import say, size
from pippin.config.load import load
from pippin.config.settings import Sources
from pippin.config.worker_environment import worker_environment

DESCRIPTION: Final = (
    "Run a model, or a part of one, for a server on another machine (`pippin serve --machines A,B`). "
    "That server starts this by ssh, or through a cluster; nobody types it. A model that is not here is fetched."
)
TELL_EVERY: Final = 10.0  # seconds between lines about a download


def new_parser() -> Parser:
    parser = Parser(prog="pippin worker", description=DESCRIPTION)
    parser.add_argument("model", help="name of the model")
    parser.add_argument("path", help="its folder on the server, which is looked for here first")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    folder = Path(parsed.path)
    if not folder.exists():
        folder = fetched(parsed.model)
    os.execve(sys.executable, [sys.executable, "-m", "pippin.worker", "-", str(folder)], worker_environment())


def fetched(model: str) -> Path:
    """The model's folder on this machine, downloaded first if it is not here. Raises `ServerError`."""
    told = time.monotonic()

    def tell(done: int, total: int, what: str) -> None:
        """Print progress to standard error, which goes to the server's log."""
        nonlocal told
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            say(f"Fetching {what}: {size(done)} of {size(total)}.", sys.stderr)

    found = asyncio.run(open_catalog(load(Sources())).ensure(model, tell, by_operator=True))
    return Path(found.path or "")
