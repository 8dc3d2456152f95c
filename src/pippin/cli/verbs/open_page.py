"""`pippin open`: opens the running server's page in a browser."""

import webbrowser
from collections.abc import Sequence

from pippin.cli.arguments import Parser
from pippin.cli.greeting import reachable
from pippin.cli.running import address, ask, client_parser
from pippin.cli.terminal import say


def new_parser() -> Parser:
    parser = client_parser("pippin open", "Open the running server's page in a browser.")
    parser.add_argument("--print", action="store_true", help="say the address alone")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    page = reachable(address(parsed)) + "/"
    ask(parsed, "GET", "/health")  # raises with advice if no server answers
    if parsed.print or not webbrowser.open(page):
        say(page)
    return 0
