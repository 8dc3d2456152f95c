"""Reads YAML files: Pippin's own format, mlx-openai-server's, and vllm-mlx's registry."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pippin.config.compat.servers import servers
from pippin.config.compat.terms import ENTRY_FIELDS, Term, translate, without_effect
from pippin.config.errors import ConfigError, nearest
from pippin.config.options.declaration import options
from pippin.config.options.start import Compat
from pippin.config.settings import Given, GivenModel, Note, Origin, Reading
from pippin.config.values import convert

ENTRY_ALIASES = {"model": "path", "served_model_name": "name", "model_kind": "kind"}
ENTRY_OPTIONS = {
    "path": "served_model_name",
    "name": "served_model_name",
    "kind": "model_kind",
    "preload": "lazy_load",
}
"""The options that take the same values as the fields of an entry."""
MODEL = "models[]."
MOST_VALUES = 100_000


def load_document(path: str) -> dict[str, Any]:
    """The file as a mapping, with its keys unchanged."""
    import yaml  # slow to import, and only needed where there is a file

    try:
        text = Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: cannot be read ({reason}).") from None
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Its text shows the line, which may hold a secret.
        line = f"line {mark.line + 1}: " if (mark := getattr(error, "problem_mark", None)) else ""
        problem = getattr(error, "problem", None) or "a character that it may not have"
        raise ConfigError(f"{path}: not YAML ({line}{problem}).") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply.") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{path}: the file must be a mapping of options.")
    if _is_larger(document, MOST_VALUES):
        raise ConfigError(f"{path}: it has more than {MOST_VALUES} values, with what its anchors repeat.")
    return document


def _is_larger(document: Any, most: int) -> bool:
    """Whether a document has more than `most` values, counting each alias as everything that it expands to.

    A few lines of nested aliases can expand to billions of values, or refer to themselves.
    """
    waiting, count = [document], 0
    while waiting and count <= most:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return count > most


def form_of(document: Mapping[str, Any]) -> Compat | None:
    """The server whose format the file has, judged by keys that only one of them uses."""
    entries = document.get("models")
    entries = entries if isinstance(entries, list) else []
    if "server" in document or any(isinstance(entry, dict) and "model_path" in entry for entry in entries):
        return "mlx-openai-server"
    return "vllm-mlx" if "manager" in document else None


def read_document(document: Mapping[str, Any], path: str, form: Compat | None) -> Reading:
    """The options and models in the file. Raises `ConfigError` for an unknown key."""
    terms = {term.name: term for term in servers()[form].keys} if form else {}
    reading = Reading()
    plain = {key: value for key, value in document.items() if key not in ("models", "model_defaults")}
    defaults = document.get("model_defaults") or {}
    if not isinstance(defaults, dict):
        raise ConfigError(f"{path}: model_defaults must be a mapping of options.")
    for name, value in [*_leaves(plain, terms), *defaults.items()]:
        where = f"{path}: {name}"
        values = _option(str(name), value, where, terms, reading.notes)
        reading.options.update({name: Given(value, Origin("file", where)) for name, value in values.items()})
    entries = document.get("models") or []
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: models must be a list.")
    for number, entry in enumerate(entries):
        reading.models.append(_entry(entry, f"{path}: models[{number}]", terms, form, reading.notes))
    return reading


def _leaves(
    node: Mapping[str, Any], terms: Mapping[str, Term], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if any(name.startswith(f"{path}.") for name in terms):
            if value is not None and not isinstance(value, dict):
                raise ConfigError(f"{path} must be a mapping.")
            yield from _leaves(value or {}, terms, f"{path}.")
        else:
            yield path, value


def _option(key: str, value: Any, where: str, terms: Mapping[str, Term], notes: list[Note]) -> dict[str, Any]:
    if key in terms:
        return {} if value is None else translate(terms[key], value, where, notes)
    known = options().get(key.replace("-", "_"))
    if known is None or known.name == "config":
        names = [name for name in options() if name != "config"]
        raise ConfigError(f"{where}: no such option.{nearest(key, [*names, *terms, 'models'])}")
    return {known.name: convert(known, value, where)}


def _entry(
    entry: Any, where: str, terms: Mapping[str, Term], form: Compat | None, notes: list[Note]
) -> GivenModel:
    if isinstance(entry, str):
        entry = {"path": entry}
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be a mapping with `path`, or the path itself.")
    nested = entry.get("options") or {}
    if not isinstance(nested, dict):
        raise ConfigError(f"{where}.options must be a mapping of options.")
    entry = {key: value for key, value in {**entry, **nested}.items() if key != "options"}
    found: dict[str, Given] = {}
    # Keys that refine another key are read after it.
    refining = {name.removeprefix(MODEL) for name, term in terms.items() if term.requires}
    for key in sorted(entry, key=lambda key: str(key) in refining):
        values = _model_option(str(key), entry[key], f"{where}.{key}", terms, entry, notes)
        origin = Origin("file", f"{where}.{key}")
        found |= {name: Given(value, origin) for name, value in values.items()}
    fields = {name: found.pop(name).value for name in ENTRY_FIELDS if name in found}
    if not fields.get("path"):
        raise ConfigError(f"{where} needs `{'model_path' if form == 'mlx-openai-server' else 'path'}`.")
    if form == "vllm-mlx":  # its registry loads models on demand
        fields.setdefault("preload", False)
    return GivenModel(origin=Origin("file", where), options=found, **fields)


def _model_option(
    key: str,
    value: Any,
    where: str,
    terms: Mapping[str, Term],
    entry: Mapping[str, Any],
    notes: list[Note],
) -> dict[str, Any]:
    if term := terms.get(MODEL + key):
        if value is None:
            return {}
        if term.requires and not entry.get(term.requires.removeprefix(MODEL)):
            notes.append(without_effect(term, where))
            return {}
        return translate(term, value, where, notes)
    name = ENTRY_ALIASES.get(key, key)
    if name in ENTRY_FIELDS:
        return {name: convert(options()[ENTRY_OPTIONS[name]], value, where)}
    known = options().get(key.replace("-", "_"))
    if known is None or known.scope != "model":
        own = [term.removeprefix(MODEL) for term in terms if term.startswith(MODEL)]
        names = [option.name for option in options().values() if option.scope == "model"]
        raise ConfigError(f"{where}: no such option.{nearest(key, [*own, *ENTRY_FIELDS, *names])}")
    return {known.name: convert(known, value, where)}
