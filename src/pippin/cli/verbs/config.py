"""`pippin config show`: the value of every option, and where it came from."""

from argparse import Namespace
from typing import Any

import msgspec
import yaml

from pippin.cli.arguments import JSON, Actions, option_parser, switch, verb
from pippin.cli.local import settings_of
from pippin.cli.terminal import as_json
from pippin.config.compat.terms import ENTRY_FIELDS
from pippin.config.options.declaration import SECRET, options
from pippin.config.settings import Settings


@verb(
    "config show",
    switch("--changed", help="only what differs from the defaults"),
    JSON,
    parser=option_parser,
    description="Show every option's value, or the --changed ones, and where it came from.",
)
def _show(parsed: Namespace) -> int:
    settings = settings_of(parsed)
    rows = _rows(settings, changed=parsed.changed)
    if parsed.json:
        shown = {name: {"value": value, "from": origin} for name, value, origin in rows}
        print(as_json(shown))
    else:
        print(_as_text(rows) or "# Nothing differs from the defaults.")
    for note in settings.notes:
        print(f"# {note.severity}: {note.text}")
    return 0


config = Actions("config", {"show": _show})


def _rows(settings: Settings, *, changed: bool) -> list[tuple[str, Any, str]]:
    """Name, value and origin of each option, followed by the models."""
    server = msgspec.structs.asdict(settings.server)
    defaults = msgspec.structs.asdict(settings.server.model_defaults)
    rows: list[tuple[str, Any, str]] = []
    for option in options().values():
        origin = settings.origin(option.name)
        if option.scope == "start" or (changed and origin.source == "default"):
            continue
        value = (server if option.scope == "server" else defaults)[option.name]
        rows.append((option.name, "***" if value and option.name in SECRET else value, str(origin)))
    for number, entry in enumerate(settings.server.models):
        prefix = f"models[{number}]"
        rows += [
            (f"{prefix}.{name}", value, str(settings.origin(prefix)))
            for name in ENTRY_FIELDS
            if (value := getattr(entry, name)) is not None
        ]
        own = msgspec.structs.asdict(entry.options)
        rows += [
            (name, own[name.removeprefix(f"{prefix}.")], str(origin))
            for name, origin in settings.provenance.items()
            if name.startswith(f"{prefix}.")
        ]
    return rows


def _as_text(rows: list[tuple[str, Any, str]]) -> str:
    pairs = [(f"{name}: {_yaml(value)}", origin) for name, value, origin in rows]
    width = min(max((len(text) for text, _ in pairs), default=0), 60)
    return "\n".join(f"{text:<{width}}  # {origin}" for text, origin in pairs)


def _yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()
