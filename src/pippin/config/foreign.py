"""A foreign name's value as Pippin's options, with the line that tells the operator of it."""

from typing import Any

from pippin.config.compat.terms import Converted, Refused, Term
from pippin.config.errors import ConfigError
from pippin.config.options.declaration import options
from pippin.config.settings import Note
from pippin.config.values import convert

ENTRY_FIELDS = ("path", "name", "kind", "preload")
"""Parts of a model's entry that are no options."""


def translate(term: Term, value: Any, where: str) -> tuple[dict[str, Any], list[Note]]:
    """Raises `ConfigError` for a value that the replaced server would have refused as well."""
    match term.effect:
        case "needless":
            return {}, [Note("info", f"{where} is accepted and not needed: {term.note}.")]
        case "unsupported":
            return {}, [Note("warning", f"{where} has no effect: {term.note}.")]
        case "same" | "equivalent":
            pass
    if term.option is None:
        return {}, []
    try:
        converted = term.convert(value) if term.convert else Converted({term.option: value})
    except Refused as refused:
        raise ConfigError(f"{where}: `{value}` is not {refused}.") from None
    values = {name: _typed(name, given, where) for name, given in converted.options.items()}
    notes = [Note("warning", f"{where}: {converted.warning}.")] if converted.warning else []
    if term.effect == "equivalent" and not notes:
        notes = [Note("info", f"{where} is `{term.option}` in Pippin: {term.note}.")]
    return values, notes


def _typed(name: str, value: Any, where: str) -> Any:
    return value if name in ENTRY_FIELDS else convert(options()[name], value, where)


def without_effect(term: Term, where: str) -> Note:
    return Note("info", f"{where} has no effect without {term.requires}.")
