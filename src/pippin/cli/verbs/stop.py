"""`pippin stop`: stops the running server like a single Ctrl-C, so that requests finish first."""

import os
import signal
import time
from collections.abc import Sequence

from pippin.cli.arguments import Parser
from pippin.cli.running import RunningServer, running_servers
from pippin.core.errors import ServerError


def new_parser() -> Parser:
    parser = Parser(prog="pippin stop", description="Stop the running server; what runs is finished first.")
    parser.add_argument("--port", type=int, help="stop the server that listens on this port")
    parser.add_argument("--all", action="store_true", help="stop every server of this user")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for its end")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    servers = running_servers()
    if parsed.port is not None:
        servers = [server for server in servers if server.address.endswith(f":{parsed.port}")]
    if not servers:
        where = "here" if parsed.port is None else f"on port {parsed.port}"
        raise ServerError("not_found", f"No server of this user runs {where}. Start one: pippin serve")
    if len(servers) > 1 and not parsed.all:
        listed = ", ".join(server.address for server in servers)
        raise ServerError("conflict", f"Several servers run: {listed}. Choose with --port, or stop --all.")
    for server in servers:
        os.kill(server.pid, signal.SIGTERM)
    for server in servers:
        _wait(server, parsed.timeout)
        print(f"{server.address} has stopped.")
    return 0


def _wait(server: RunningServer, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(other.pid == server.pid for other in running_servers()):
            return
        time.sleep(0.1)
    raise ServerError("timeout", f"{server.address} still finishes requests after {seconds:.0f} seconds.")
