"""The output of `pippin` without a verb: running servers, models on this machine, and next commands."""

from collections.abc import Sequence
from typing import Final

from pippin.cli.local import open_catalog
from pippin.cli.running import running_servers
from pippin.cli.terminal import say, size
from pippin.config.load import load

FEW: Final = 5  # models listed by name


def run(arguments: Sequence[str]) -> int:
    servers = running_servers()
    models = open_catalog(load()).models()
    lines = [f"A server runs at {server.address}" for server in servers] or ["No server runs."]
    if models:
        lines.append(f"{len(models)} model{'' if len(models) == 1 else 's'} here:")
        lines += [f"  {info.id}  {size(info.size_bytes)}" for info in models[:FEW]]
        if len(models) > FEW:
            lines.append("  ... `pippin list` shows them all")
    else:
        lines.append("No models are here.")
    say("\n".join([*lines, "", *_next(any_model=bool(models), any_server=bool(servers))]))
    return 0


def _next(*, any_model: bool, any_server: bool) -> list[str]:
    steps: dict[str, str] = {}
    if not any_model:
        steps["pippin recommend"] = "names models for this machine"
        steps["pippin pull ORG/NAME"] = "fetches one"
    steps["pippin run"] = "chats in the terminal"
    steps["pippin agent claude"] = "starts a coding agent; --list shows twenty"
    if any_server:
        steps["pippin ps"] = "shows what is in memory"
        steps["pippin logs"] = "shows the server's log"
    else:
        steps["pippin serve"] = "serves the APIs of OpenAI and Anthropic"
    steps["pippin --help"] = "shows all commands"
    width = max(map(len, steps)) + 2
    return [f"{command:<{width}}{does}" for command, does in steps.items()]
