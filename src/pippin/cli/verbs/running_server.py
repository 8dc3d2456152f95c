"""The running server: `pippin ps`, `load`, `unload`, `stop`, `logs` and `open`."""

import os
import signal
import time
import webbrowser
from argparse import Namespace
from collections import deque
from pathlib import Path
from typing import Any, Final

from pippin.cli.arguments import CLIENT, argument, number, switch, verb
from pippin.cli.greeting import reachable
from pippin.cli.running import RunningServer, address, ask, running_servers
from pippin.cli.terminal import ago, as_json, say, size, table
from pippin.config import environment
from pippin.core.errors import ServerError

LINES: Final = 100  # of a log
LOOK_EVERY: Final = 0.3  # seconds between looks at a log that is followed


@verb(
    "ps",
    *CLIENT,
    switch("--usage", help="show what each key has used of each model, over the server's life"),
)
def ps(parsed: Namespace) -> int:
    if parsed.usage:
        return _usage(ask(parsed, "GET", "/v1/usage")["data"], in_json=parsed.json)
    health = ask(parsed, "GET", "/health")
    if "workers" not in health:
        raise ServerError(
            "authentication", "The server asks for a key: give it with --api-key or PIPPIN_API_KEY."
        )
    models = [model for model in health["workers"] if model.get("state") != "unloaded"]
    if parsed.json:
        print(as_json(models))
    elif models:
        print(
            table(("NAME", "STATE", "MEMORY", "REQUESTS", "USED", "PID"), [_row(model) for model in models])
        )
        print("Memory: weights and process, as measured once loaded; conversations take theirs beside it.")
        for model in ask(parsed, "GET", "/v1/models")["data"]:
            if told := model["error"] or (model["loaded"] and rewritten(model)):
                print(f"{model['id']}: {told}")
        if told := speculation(ask(parsed, "GET", "/v1/status")):
            print(told)
    else:
        print("No model is in memory. Requests load them, or: pippin load MODEL")
    return 0


def _usage(rows: list[dict[str, Any]], *, in_json: bool) -> int:
    if in_json:
        print(as_json(rows))
        return 0
    names = "requests prompt_tokens cached_tokens completion_tokens forced_tokens accepted_tokens".split()
    heads = ("KEY", "MODEL", "REQUESTS", "PROMPT", "CACHED", "ANSWER", "FORCED", "ACCEPTED", "SECONDS")
    cells = [
        (row["key"] or "-", row["model"], *(str(row[name]) for name in names), f"{row['seconds']:.0f}")
        for row in rows
    ]
    print(table(heads, cells) if cells else "Nothing was asked yet.")
    return 0


def rewritten(model: dict[str, Any]) -> str | None:
    """What a model's chat template changes of earlier turns, as `/v1/models` has it; None if nothing."""
    named = ", ".join(model["metadata"].get("rewrites") or ())
    return f"its template changes {named} of earlier turns, computed again from there" if named else None


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


@verb(
    "load",
    *CLIENT,
    argument("model", help="the model's name"),
    switch("--pin", help="keep it: never unload it to make room"),
)
def load(parsed: Namespace) -> int:
    answer = ask(parsed, "POST", "/v1/models/load", {"model": parsed.model})
    name = answer["model"]  # the full name, even if only a part was given
    if parsed.pin:
        answer = ask(parsed, "POST", f"/v1/models/{name}/pin", {"pinned": True})
    print(as_json(answer) if parsed.json else f"{name} is loaded.")
    return 0


@verb(
    "unload",
    *CLIENT,
    argument("model", nargs="?", help="the model's name; all models if not given"),
)
def unload(parsed: Namespace) -> int:
    if parsed.model:
        answer = ask(parsed, "POST", f"/v1/models/{parsed.model}/unload")
    else:
        answer = ask(parsed, "POST", "/unload", {"all": True})
    if parsed.json:
        print(as_json(answer))
    elif answer["status"] == "no_model_loaded":
        print(f"{parsed.model} was not loaded." if parsed.model else "No model was loaded.")
    else:
        print(f"{', '.join(answer['models'])} is unloaded." if parsed.model else "Every model is unloaded.")
    return 0


@verb(
    "stop",
    argument("--port", type=int, help="stop the server that listens on this port"),
    switch("--all", help="stop every server of this user"),
    number("--timeout", least=0, kind=float, default=60.0, help="seconds to wait for its end"),
)
def stop(parsed: Namespace) -> int:
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


@verb(
    "logs",
    switch("-f", "--follow", help="go on showing what comes"),
    number("-n", "--lines", least=0, default=LINES, metavar="COUNT", help=f"last lines (default: {LINES})"),
    switch("--path", help="say where the file is"),
)
def logs(parsed: Namespace) -> int:
    path = _log()
    if parsed.path:
        say(str(path))
        return 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=parsed.lines):
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


@verb(
    "open",
    *CLIENT,
    switch("--print", help="say the address alone"),
)
def open_page(parsed: Namespace) -> int:
    page = reachable(address(parsed)) + "/"
    ask(parsed, "GET", "/health")  # raises with advice if no server answers
    if parsed.print or not webbrowser.open(page):
        say(page)
    return 0
