"""`pippin worker`: a model, or a part of one, for a server on another machine that starts this (through ssh)."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pippin.cli.arguments import Parser
from pippin.cli.local import open_catalog
from pippin.config.load import load
from pippin.config.settings import Sources
from pippin.config.worker_environment import worker_environment

DESCRIPTION: Final = (
    "Run a model, or a part of one, for a server on another machine (`pippin serve --machines`, `--replica-machines`). "
    "That server starts this by ssh; nobody types it."
)


def run(arguments: Sequence[str]) -> int:
    parser = Parser(prog="pippin worker", description=DESCRIPTION)
    parser.add_argument("model", help="name of the model")
    parser.add_argument("path", help="its folder on the server, which is looked for here first")
    parsed = parser.parse(arguments)
    folder = Path(parsed.path)
    if not folder.exists():
        found = open_catalog(load(Sources())).resolve(parsed.model)
        folder = Path(found.path or "")
    os.execve(sys.executable, [sys.executable, "-m", "pippin.worker", "-", str(folder)], worker_environment())
