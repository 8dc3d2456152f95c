"""Changes a running server's settings: what takes effect at once, and what needs a restart."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pippin.config.compat.servers import servers
from pippin.config.compat.terms import translate
from pippin.config.errors import ConfigError, nearest
from pippin.config.load import load
from pippin.config.options.declaration import options
from pippin.config.options.server import ModelEntry
from pippin.config.settings import Note, Origin, Settings
from pippin.config.values import convert


class Reloaded(Struct, frozen=True, kw_only=True):
    """`settings` includes the hot changes, and keeps the old values of options that need a restart."""

    settings: Settings
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def reload(settings: Settings, variables: Mapping[str, str] | None = None) -> Reloaded:
    """Read all sources again (SIGHUP). Raises `ConfigError`, in which case nothing has changed."""
    fresh = load(settings.sources, variables)
    reloaded = _adopt(settings, fresh)
    return msgspec.structs.replace(reloaded, notes=fresh.notes)


def restore(settings: Settings, start: Settings) -> Reloaded:
    """Undo the changes that requests have made since `start`."""
    return _adopt(settings, start)


def change(settings: Settings, values: Mapping[str, Any]) -> Reloaded:
    """Apply single values (`PATCH /v1/settings`), under Pippin's names or mlx_vlm.server's."""
    own = {name: option for name, option in options().items() if option.scope != "start"}
    knobs = {term.name: term for term in servers()["mlx-vlm"].settings}
    new: dict[str, Any] = {}
    notes: list[Note] = []
    for key, value in values.items():
        if key in knobs:
            translated, more = translate(knobs[key], value, key)
            new |= translated
            notes += more
        elif key in own:
            new[key] = convert(own[key], value, key)
        else:
            raise ConfigError(f"{key}: no such option.{nearest(key, [*own, *knobs])}")
    reloaded = _adopt(settings, _with(settings, new))
    return msgspec.structs.replace(reloaded, notes=tuple(notes))


def _with(settings: Settings, values: Mapping[str, Any]) -> Settings:
    scopes = {name: options()[name].scope for name in values}
    of_models = {name: value for name, value in values.items() if scopes[name] == "model"}
    of_server = {name: value for name, value in values.items() if scopes[name] == "server"}
    server = msgspec.structs.replace(
        settings.server,
        **of_server,
        model_defaults=msgspec.structs.replace(settings.server.model_defaults, **of_models),
        models=tuple(
            _entry_with(settings, number, of_models) for number in range(len(settings.server.models))
        ),
    )
    origins = {name: Origin("request", "PATCH /v1/settings") for name in values}
    return msgspec.structs.replace(settings, server=server, provenance={**settings.provenance, **origins})


def _entry_with(settings: Settings, number: int, values: Mapping[str, Any]) -> ModelEntry:
    """The entry with these defaults, except where it sets options itself."""
    entry = settings.server.models[number]
    free = {
        name: value for name, value in values.items() if f"models[{number}].{name}" not in settings.provenance
    }
    return msgspec.structs.replace(entry, options=msgspec.structs.replace(entry.options, **free))


def _adopt(old: Settings, new: Settings) -> Reloaded:
    """The old settings, updated with the hot differences."""
    server = _differences(old.server, new.server)
    defaults = _differences(old.server.model_defaults, new.server.model_defaults)
    names = [name for name in options() if name in server or name in defaults]
    changed = [name for name in names if options()[name].hot]
    models, of_entries, entries_restart = _adopt_entries(old.server.models, new.server.models)
    adopted = msgspec.structs.replace(
        old.server,
        **_hot(server),
        models=models,
        model_defaults=msgspec.structs.replace(old.server.model_defaults, **_hot(defaults)),
    )
    provenance = dict(old.provenance)
    for name in changed:
        provenance[name] = new.origin(name)
    return Reloaded(
        settings=msgspec.structs.replace(old, server=adopted, provenance=provenance),
        changed=tuple(changed + of_entries),
        needs_restart=tuple([name for name in names if name not in changed] + entries_restart),
    )


def _adopt_entries(
    old: tuple[ModelEntry, ...], new: tuple[ModelEntry, ...]
) -> tuple[tuple[ModelEntry, ...], list[str], list[str]]:
    """The entries, updated with the hot part of their new options. A different list of models needs a restart."""
    if [(entry.path, entry.name, entry.kind) for entry in old] != [
        (entry.path, entry.name, entry.kind) for entry in new
    ]:
        return old, [], ["models"]
    adopted: list[ModelEntry] = []
    changed: list[str] = []
    restart: list[str] = []
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        differ = _differences(before.options, after.options)
        hot = _hot(differ)
        changed += [f"models[{number}].{name}" for name in hot]
        restart += [f"models[{number}].{name}" for name in differ if name not in hot]
        adopted.append(
            msgspec.structs.replace(before, options=msgspec.structs.replace(before.options, **hot))
        )
    return tuple(adopted), changed, restart


def _differences(before: Struct, after: Struct) -> dict[str, Any]:
    """The options that differ, with their new values."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return {name: value for name, value in new.items() if name in options() and old[name] != value}


def _hot(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if options()[name].hot}
