"""`pippin load`: loads a model into the running server."""

import json
from collections.abc import Sequence

from pippin.cli.arguments import Parser
from pippin.cli.running import ask, client_parser


def new_parser() -> Parser:
    parser = client_parser("pippin load", "Load a model into the running server, and wait until it is ready.")
    parser.add_argument("model", help="the model's name")
    parser.add_argument("--pin", action="store_true", help="keep it: never unload it to make room")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    answer = ask(parsed, "POST", "/v1/models/load", {"model": parsed.model})
    name = answer["model"]  # the full name, even if only a part was given
    if parsed.pin:
        answer = ask(parsed, "POST", f"/v1/models/{name}/pin", {"pinned": True})
    print(json.dumps(answer, indent=2) if parsed.json else f"{name} is loaded.")
    return 0
