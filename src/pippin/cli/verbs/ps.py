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
    return client_parser("pippin ps", "List the models in memory of the running server.")


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
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
    else:
        print("No model is in memory. Requests load them, or: pippin load MODEL")
    return 0


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
