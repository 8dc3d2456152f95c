"""`pippin unload`: takes a model, or all, out of the running server's memory."""

import json
from collections.abc import Sequence

from pippin.cli.running import ask, client_parser


def run(arguments: Sequence[str]) -> int:
    parser = client_parser("pippin unload", "Unload a model from the running server; requests end first.")
    parser.add_argument("model", nargs="?", help="the model's name; all models if not given")
    parsed = parser.parse(arguments)
    path = f"/v1/models/{parsed.model}/unload" if parsed.model else "/unload"
    answer = ask(parsed, "POST", path)
    if parsed.json:
        print(json.dumps(answer, indent=2))
    elif isinstance(answer, dict) and answer.get("status") == "no_model_loaded":
        print(f"{parsed.model or 'No model'} was not loaded." if parsed.model else "No model was loaded.")
    else:
        print(f"{parsed.model or 'Every model'} is unloaded.")
    return 0
