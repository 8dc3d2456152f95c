"""`pippin logs`: the log of the running server."""

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pippin.cli.arguments import Parser
from pippin.cli.running import running_servers
from pippin.cli.terminal import say
from pippin.config import environment
from pippin.core.errors import ServerError

LINES: Final = 100
LOOK_EVERY: Final = 0.3  # seconds


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin logs", description="Show the log of the running server, or of one that failed."
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing what comes")
    parser.add_argument(
        "-n", "--lines", type=int, default=LINES, metavar="COUNT", help=f"last lines (default: {LINES})"
    )
    parser.add_argument("--path", action="store_true", help="say where the file is")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    path = _log()
    if parsed.path:
        say(str(path))
        return 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=max(0, parsed.lines)):
            say(line.rstrip("\n"))
        while parsed.follow:
            if line := file.readline():
                say(line.rstrip("\n"))
            else:
                time.sleep(LOOK_EVERY)
    return 0


def _log() -> Path:
    """The newest log: of a running server, or left behind by a server that `pippin run` started."""
    servers = running_servers()
    for server in servers:
        if server.log is not None and Path(server.log).is_file():
            return Path(server.log)
    if servers:
        raise ServerError(
            "not_found",
            f"The server at {servers[0].address} logs to its terminal. To keep its log: pippin serve --log-file FILE",
        )
    left = sorted((environment.home() / "logs").glob("*.log"), key=lambda path: path.stat().st_mtime)
    if not left:
        raise ServerError(
            "not_found", "No server of this user runs here, and none left a log. Start one: pippin serve"
        )
    return left[-1]
