"""Describes a replaced server's configuration, and translates it to Pippin's options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from pippin.config.compat import conversions
from pippin.config.compat.conversions import Converted, Refused
from pippin.config.errors import ConfigError
from pippin.config.options.declaration import options
from pippin.config.options.start import Compat
from pippin.config.settings import Note
from pippin.config.values import FALSE
from pippin.config.values import convert as converted_to
from pippin.core.models import ModelKind

Effect = Literal["same", "equivalent", "needless", "refused"]
Takes = Literal["value", "switch", "words"]

EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)


class Term(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One flag, variable or YAML key, and its effect in Pippin.

    `same`: Pippin's option, perhaps under another name (without an option, it is read where it is used). `equivalent`:
    an option that does the same job differently. `needless`: Pippin always does it, or needs no setting; logs one line.
    `refused`: Pippin does not have it, and does not start with it.
    """

    name: str
    effect: Effect
    option: str | None = None
    note: str = ""
    default: str = "-"  # of the replaced server
    takes: Takes = "value"
    convert: str | None = None  # a function of `conversions`
    words: Mapping[str, Any] = {}  # all that may be given, and what it means
    inside: str = ""  # what is meant in the folder that is given
    sets: Mapping[str, Any] = {}  # the options that a switch sets which is on
    requires: str | None = None  # another name without which it has no effect

    @property
    def converts(self) -> bool:
        return bool(self.convert or self.words or self.sets or self.inside)


class KnownModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that the replaced server fetched and loaded by itself when a request named it."""

    path: str  # the repository
    name: str | None = None
    kind: ModelKind | None = None
    listed: bool = False  # in /v1/models, before it is on disk


class Server(Struct, frozen=True, kw_only=True):
    name: Compat
    title: str
    command: str  # how the server was started, and how Pippin is
    flags: tuple[Term, ...]
    variables: tuple[Term, ...]
    keys: tuple[Term, ...]
    settings: tuple[Term, ...]  # names accepted by its PATCH /v1/settings
    mcp_keys: tuple[Term, ...]  # of its MCP file, which Pippin reads unchanged
    profile: Mapping[str, Any]  # defaults that differ from Pippin's
    fallbacks: Mapping[str, Any] = {}  # sampling defaults that rank below the checkpoint's own
    known_models: tuple[KnownModel, ...] = ()
    aliases: Mapping[str, str] = {}  # its own names of models, and what they name at Hugging Face
    general_variables: tuple[str, ...] = ()  # names too common to be read without its profile


ENTRY_FIELDS = ("path", "name", "kind", "preload")
"""Fields of a model's entry that are not options."""


def translate(term: Term, value: Any, where: str, notes: list[Note]) -> dict[str, Any]:
    """Translate a foreign name's value to Pippin's options, and add `notes` for the operator's log.

    `where` gives the place of the value in messages. Raises `ConfigError` for a value that the replaced server would
    have refused as well.
    """
    if term.effect == "needless":
        notes.append(Note("info", f"{where} is accepted and not needed: {term.note}."))
    if term.effect == "refused" and str(value).strip().lower() not in FALSE:
        raise ConfigError(f"{where} is not supported: {term.note}.")
    # A switch that is off requests nothing.
    if term.option is None or term.effect in ("needless", "refused"):
        return {}
    try:
        converted = _converted(term, term.option, value)
    except Refused as refused:
        raise ConfigError(f"{where}: `{value}` is not {refused}.") from None
    if converted.warning:
        notes.append(Note("warning", f"{where}: {converted.warning}."))
    else:
        tell(term, where, notes)
    return {
        name: given if name in ENTRY_FIELDS else converted_to(options()[name], given, where)
        for name, given in converted.options.items()
    }


def tell(term: Term, where: str, notes: list[Note]) -> None:
    """Add what an operator is told of an option that does a name's job differently."""
    if term.effect == "equivalent":
        notes.append(Note("info", f"{where} is `{term.option}` in Pippin: {term.note}."))


def _converted(term: Term, option: str, value: Any) -> Converted:
    if term.sets:
        return Converted(term.sets if conversions.truth(value) else {})
    if term.words:
        return Converted({option: conversions.chosen(term.words, value)})
    if term.inside:
        return Converted({option: str(Path(value) / term.inside)})
    if term.convert is None:
        return Converted({option: value})
    converted: Converted = getattr(conversions, term.convert)(option, value)
    return converted


def without_effect(term: Term, where: str) -> Note:
    return Note("info", f"{where} has no effect without {term.requires}.")
