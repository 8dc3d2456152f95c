"""Resolves all sources into settings: defaults < profile < file < environment < flags."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from pippin.config import environment, yaml_file
from pippin.config.compat.servers import servers
from pippin.config.flags import read_flags
from pippin.config.options.declaration import options
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.options.start import Compat
from pippin.config.settings import DEFAULT, Given, GivenFlag, GivenModel, Note, Origin, Reading, Settings
from pippin.config.values import parse
from pippin.core.models import ModelKind
from pippin.core.requests import Sampling

OF_NAMED_MODELS = ("adapter_path", "draft_model_path", "draft_kind")
"""Model options that apply to the models named beside them, not to all models."""

FIRST_MODEL = ("served_model_name", "model_kind")

KIND_OPTIONS: dict[str, ModelKind] = {
    "image_model": "images",
    "tts_model": "speech",
    "stt_model": "transcription",
    "embedding_model": "embeddings",
    "reranker_model": "reranking",
    "decision_model": "decisions",
}


def load(flags: Sequence[GivenFlag] = (), variables: Mapping[str, str] | None = None) -> Settings:
    """Read every source and resolve them. Raises `ConfigError` with a one-line message."""
    variables = environment.variables() if variables is None else variables
    config = _early("config", flags, variables)
    document = yaml_file.load_document(config) if config else {}
    compat = _early("compat", flags, variables) or document.get("compat")
    if compat is not None:
        compat = parse(options()["compat"], [str(compat)], "--compat")
    profile = servers()[compat].profile if compat is not None else {}
    origin = Origin("profile", f"--compat {compat}")
    readings = [Reading({name: Given(value, origin) for name, value in profile.items()})]
    from_variables = environment.read_variables(variables, compat)
    from_flags = read_flags(flags, compat)
    if config:
        form = yaml_file.form_of(document)
        readings.append(yaml_file.read_document(document, config, form))
    readings += [from_variables, from_flags]
    merged = _merge(readings)
    if registry := merged.get("models_config"):
        document = yaml_file.load_document(registry.value)
        readings.insert(1, yaml_file.read_document(document, registry.value, "vllm-mlx"))
        merged = _merge(readings)
    return _resolve(merged, readings, flags, compat)


def _early(name: str, flags: Sequence[GivenFlag], variables: Mapping[str, str]) -> Any:
    """An option that is needed before the others, because it determines how they are read."""
    option = options()[name]
    texts = [flag.text or "" for flag in flags if flag.name == option.flag]
    return texts[-1] if texts else variables.get(option.variable) or None


def _merge(readings: Sequence[Reading]) -> dict[str, Given]:
    merged: dict[str, Given] = {}
    for reading in readings:
        merged |= reading.options
    return merged


def _resolve(
    merged: Mapping[str, Given],
    readings: Sequence[Reading],
    flags: Sequence[GivenFlag],
    compat: Compat | None,
) -> Settings:
    named = _named(merged)
    if named:
        merged = {name: given for name, given in merged.items() if name not in OF_NAMED_MODELS}
    entries = [entry for reading in readings for entry in reading.models]
    known = {name for entry in entries for name in (entry.path, entry.name)}
    entries += [entry for entry in named if entry.path not in known]
    scoped = {
        scope: {name: given.value for name, given in merged.items() if options()[name].scope == scope}
        for scope in ("start", "server", "model")
    }
    lazy = scoped["start"].get("lazy_load", False)
    if compat is not None:
        replaced, origin = servers()[compat], Origin("profile", f"--compat {compat}")
        scoped["model"]["fallbacks"] = Sampling(**replaced.fallbacks)
        scoped["server"]["aliases"] = {**replaced.aliases, **scoped["server"].get("aliases", {})}
        known = {name for entry in entries for name in (entry.path, entry.name)}
        # The models that the profile's server loaded when a request named them.
        entries += [
            GivenModel(**structs.asdict(each), origin=origin, preload=False)
            for each in replaced.known_models
            if known.isdisjoint((each.path, each.name or each.path))
        ]
    server = ServerOptions(
        **scoped["server"],
        models=tuple(_entry(entry, scoped["model"], lazy=lazy) for entry in entries),
        model_defaults=ModelOptions(**scoped["model"]),
    )
    provenance = {name: given.origin for name, given in merged.items()}
    for number, entry in enumerate(entries):
        provenance[f"models[{number}]"] = entry.origin
        for name, given in entry.options.items():
            provenance[f"models[{number}].{name}"] = given.origin
    notes: list[Note] = [note for reading in readings for note in reading.notes]
    return Settings(
        server=server,
        compat=compat,
        provenance=provenance,
        notes=tuple(dict.fromkeys(notes)),
        flags=tuple(flags),
    )


def _named(merged: Mapping[str, Given]) -> list[GivenModel]:
    """The models named by options, those of `--model` first."""
    main = merged.get("model", Given((), DEFAULT))
    name, kind = (merged[option].value if option in merged else None for option in FIRST_MODEL)
    own = {option: merged[option] for option in OF_NAMED_MODELS if option in merged}
    named = [
        GivenModel(
            path=path,
            origin=main.origin,
            name=name if number == 0 else None,
            kind=kind if number == 0 else None,
            options=own,
        )
        for number, path in enumerate(main.value)
    ]
    return named + [
        GivenModel(path=given.value, origin=given.origin, kind=kind)
        for option, kind in KIND_OPTIONS.items()
        if (given := merged.get(option)) is not None and given.value
    ]


def _entry(entry: GivenModel, defaults: Mapping[str, Any], *, lazy: bool) -> ModelEntry:
    own = {name: given.value for name, given in entry.options.items()}
    return ModelEntry(
        path=entry.path,
        name=entry.name,
        kind=entry.kind,
        preload=not lazy if entry.preload is None else entry.preload,
        listed=entry.listed,
        options=ModelOptions(**{**defaults, **own}),
    )
