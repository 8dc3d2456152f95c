"""Command-line flags: Pippin's own and those of the replaced servers."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from pippin.config.compat.servers import flag_terms
from pippin.config.compat.terms import Takes, Term, told, translate, without_effect
from pippin.config.options.declaration import Option, options
from pippin.config.options.start import Compat
from pippin.config.settings import Given, GivenFlag, Note, Origin, Reading
from pippin.config.values import parse

POSITIONAL = "MODEL"


class Flag(Struct, frozen=True, kw_only=True):
    """A flag as the command-line parser needs it. `option` is None for a foreign name."""

    name: str
    takes: Takes
    option: Option | None = None


def flags() -> dict[str, Flag]:
    """Every flag that `pippin serve` accepts, Pippin's own first."""
    known: dict[str, Flag] = {}
    for option in options().values():
        takes: Takes = "switch" if option.shape == "switch" else "value"
        known[option.flag] = Flag(name=option.flag, takes=takes, option=option)
        if option.shape == "switch":
            off = "--no-" + option.flag.removeprefix("--")
            known[off] = Flag(name=off, takes="switch", option=option)
    for term in flag_terms(None).values():
        known.setdefault(term.name, Flag(name=term.name, takes=term.takes))
    return known


def read_flags(given: Sequence[GivenFlag], compat: Compat | None) -> Reading:
    """The options set on the command line. Of a repeated flag the last one counts; flags of lists accumulate."""
    reading = Reading()
    own = {option.flag: option for option in options().values()}
    terms = flag_terms(compat)
    texts: dict[str, list[str]] = {}
    for flag in given:
        texts.setdefault(flag.name, []).append(flag.text or "")
    for name in sorted(texts, key=lambda name: bool(name in terms and terms[name].requires)):
        values, notes = _values(name, texts, own, terms)
        reading.notes.extend(notes)
        for option, value in values.items():
            _add(reading.options, option, value, name)
    return reading


def _values(
    name: str, texts: Mapping[str, list[str]], own: Mapping[str, Option], terms: Mapping[str, Term]
) -> tuple[dict[str, Any], list[Note]]:
    if name == POSITIONAL:
        return {"model": tuple(texts[name])}, []
    term = terms.get(name)
    # A foreign flag of an option's name is read where it takes values that the option itself would refuse.
    if term is not None and (name not in own or term.converts or term.effect != "same"):
        if term.requires and term.requires not in texts:
            return {}, [without_effect(term, name)]
        if term.takes == "switch":
            return translate(term, True, name)
        if not term.converts and term.option is not None:
            option = options()[term.option]
            return {option.name: parse(option, texts[name], name)}, told(term, name)
        return translate(term, texts[name][-1], name)
    if name in own:
        option = own[name]
        return {option.name: True if option.shape == "switch" else parse(option, texts[name], name)}, []
    option = own["--" + name.removeprefix("--no-")]
    return {option.name: False}, []


def _add(given: dict[str, Given], option: str, value: Any, name: str) -> None:
    if isinstance(value, tuple) and option in given:
        value = (*given[option].value, *value)
    given[option] = Given(value, Origin("flag", name))
