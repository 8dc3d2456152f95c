"""`pippin unload`: unloads one model, or all, from the running server."""

import json
from collections.abc import Sequence

from pippin.cli.arguments import Parser
from pippin.cli.running import ask, client_parser


def new_parser() -> Parser:
    parser = client_parser("pippin unload", "Unload a model from the running server; requests end first.")
    parser.add_argument("model", nargs="?", help="the model's name; all models if not given")
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    if parsed.model:
        answer = ask(parsed, "POST", f"/v1/models/{parsed.model}/unload")
    else:
        answer = ask(parsed, "POST", "/unload", {"all": True})
    if parsed.json:
        print(json.dumps(answer, indent=2))
    elif answer["status"] == "no_model_loaded":
        print(f"{parsed.model} was not loaded." if parsed.model else "No model was loaded.")
    else:
        print(f"{', '.join(answer['models'])} is unloaded." if parsed.model else "Every model is unloaded.")
    return 0
