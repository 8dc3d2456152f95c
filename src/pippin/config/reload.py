"""Changes a running server's settings: what takes effect at once, and what needs a restart."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from pippin.config.compat.servers import servers
from pippin.config.compat.terms import translate
from pippin.config.errors import ConfigError, nearest
from pippin.config.load import load
from pippin.config.options.declaration import options
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import Note, Origin, Settings
from pippin.config.values import convert

Held = TypeVar("Held", ServerOptions, ModelOptions)


class Reloaded(Struct, frozen=True, kw_only=True):
    """`settings` includes the hot changes, and keeps the old values of options that need a restart."""

    settings: Settings
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def reload(settings: Settings, variables: Mapping[str, str] | None = None) -> Reloaded:
    """Read all sources again (SIGHUP). Raises `ConfigError`, in which case nothing has changed."""
    fresh = load(settings.flags, variables)
    return replace(adopt(settings, fresh), notes=fresh.notes)


def change(settings: Settings, values: Mapping[str, Any]) -> Reloaded:
    """Apply single values (`PATCH /v1/settings`), under Pippin's names or mlx_vlm.server's."""
    own = {name: option for name, option in options().items() if option.scope != "start"}
    knobs = {term.name: term for term in servers()["mlx-vlm"].settings}
    new: dict[str, Any] = {}
    notes: list[Note] = []
    for key, value in values.items():
        if key in knobs:
            new |= translate(knobs[key], value, key, notes)
        elif key in own:
            new[key] = convert(own[key], value, key)
        else:
            raise ConfigError(f"{key}: no such option.{nearest(key, [*own, *knobs])}")
    return replace(adopt(settings, _with(settings, new)), notes=tuple(notes))


def _with(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with these values; a model's entry keeps those of the options that it sets itself."""
    of_models = {name: value for name, value in values.items() if options()[name].scope == "model"}
    of_server = {name: value for name, value in values.items() if options()[name].scope == "server"}
    models = []
    for number, entry in enumerate(settings.server.models):
        free = {
            name: value
            for name, value in of_models.items()
            if f"models[{number}].{name}" not in settings.provenance
        }
        models.append(replace(entry, options=replace(entry.options, **free)))
    defaults = replace(settings.server.model_defaults, **of_models)
    server = replace(settings.server, **of_server, model_defaults=defaults, models=tuple(models))
    origins = dict.fromkeys(values, Origin("request", "PATCH /v1/settings"))
    return replace(settings, server=server, provenance={**settings.provenance, **origins})


def adopt(old: Settings, new: Settings) -> Reloaded:
    """The old settings, updated with the hot differences of the new ones. Other models need a restart."""
    server, changed, restart = _adopted(old.server, new.server)
    defaults, hot, cold = _adopted(old.server.model_defaults, new.server.model_defaults)
    changed, restart = changed + hot, restart + cold
    provenance = old.provenance | {name: new.origin(name) for name in changed}
    models = old.server.models
    if list(map(_named, models)) != list(map(_named, new.server.models)):
        restart.append("models")
    else:
        adopted: list[ModelEntry] = []
        for number, (before, after) in enumerate(zip(models, new.server.models, strict=True)):
            options, hot, cold = _adopted(before.options, after.options)
            changed += [f"models[{number}].{name}" for name in hot]
            restart += [f"models[{number}].{name}" for name in cold]
            adopted.append(replace(before, options=options))
        models = tuple(adopted)
    server = replace(server, models=models, model_defaults=defaults)
    return Reloaded(
        settings=replace(old, server=server, provenance=provenance),
        changed=tuple(changed),
        needs_restart=tuple(restart),
    )


def _named(entry: ModelEntry) -> tuple[str | None, ...]:
    return entry.path, entry.name, entry.kind


def _adopted(before: Held, after: Held) -> tuple[Held, list[str], list[str]]:
    """The options before, with the new values of the hot ones that differ; the names of these, and of the others that
    differ."""
    old, new = asdict(before), asdict(after)
    differ = [name for name in new if name in options() and old[name] != new[name]]
    hot = [name for name in differ if options()[name].hot]
    cold = [name for name in differ if name not in hot]
    return replace(before, **{name: new[name] for name in hot}), hot, cold
