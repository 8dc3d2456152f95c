"""`pippin ps`: the models in the memory of the running server."""

import json
import time
from collections.abc import Sequence
from typing import Any

from pippin.cli.arguments import Parser
from pippin.cli.running import ask, client_parser
from pippin.cli.terminal import ago, size, table
from pippin.core.errors import ServerError


def new_parser() -> Parser:
    parser = client_parser("pippin ps", "List the models in memory of the running server.")
    parser.add_argument(
        "--usage",
        action="store_true",
        help="show what each key has used of each model, over the server's life",
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    if parsed.usage:
        return _usage(ask(parsed, "GET", "/v1/usage")["data"], as_json=parsed.json)
    health = ask(parsed, "GET", "/health")
    if "workers" not in health:
        raise ServerError(
            "authentication", "The server asks for a key: give it with --api-key or PIPPIN_API_KEY."
        )
    models = [model for model in health["workers"] if model.get("state") != "unloaded"]
    if parsed.json:
        print(json.dumps(models, indent=2))
    elif models:
        print(
            table(("NAME", "STATE", "MEMORY", "REQUESTS", "USED", "PID"), [_row(model) for model in models])
        )
        print("Memory: weights and process, as measured once loaded; conversations take theirs beside it.")
        if told := speculation(ask(parsed, "GET", "/v1/status")):
            print(told)
    else:
        print("No model is in memory. Requests load them, or: pippin load MODEL")
    return 0


def _usage(rows: list[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    names = (
        "requests",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "forced_tokens",
        "accepted_tokens",
    )
    heads = ("KEY", "MODEL", "REQUESTS", "PROMPT", "CACHED", "ANSWER", "FORCED", "ACCEPTED", "SECONDS")
    cells = [
        (row["key"] or "-", row["model"], *(str(row[name]) for name in names), f"{row['seconds']:.0f}")
        for row in rows
    ]
    print(table(heads, cells) if cells else "Nothing was asked yet.")
    return 0


def speculation(status: dict[str, Any]) -> str | None:
    """How many proposed tokens were accepted since the models were loaded; None if there were no proposals."""
    proposed, accepted = status["mtp"]["drafts"], status["mtp"]["accepted"]
    if not proposed:
        return None
    return f"{proposed} tokens proposed, {accepted} of them accepted ({accepted / proposed:.0%})"


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    used = model.get("last_used_at")
    return (
        str(model.get("id", "-")),
        str(model.get("state", "-")) + (" (pinned)" if model.get("pinned") else ""),
        size(model["footprint_bytes"]) if model.get("footprint_bytes") else "-",
        str(model.get("active", 0)),
        ago(time.time() - used) if used else "-",
        str(model.get("pid") or "-"),
    )
