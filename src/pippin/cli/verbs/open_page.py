"""`pippin open`: opens the running server's page in a browser."""

import webbrowser
from collections.abc import Sequence

from pippin.cli.greeting import reachable
from pippin.cli.running import address, ask, client_parser
from pippin.cli.terminal import say


def run(arguments: Sequence[str]) -> int:
    parser = client_parser("pippin open", "Open the running server's page in a browser.")
    parser.add_argument("--print", action="store_true", help="say the address alone")
    parsed = parser.parse(arguments)
    page = reachable(address(parsed)) + "/"
    ask(parsed, "GET", "/health")  # raises with advice if no server answers
    if parsed.print or not webbrowser.open(page):
        say(page)
    return 0
