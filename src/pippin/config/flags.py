"""Command-line flags: Pippin's own and those of the replaced servers."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from pippin.config.compat.servers import flag_terms
from pippin.config.compat.terms import Takes, Term, tell, translate, without_effect
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
        for option, value in _values(name, texts, own, terms, reading.notes).items():
            if isinstance(value, tuple) and option in reading.options:
                value = (*reading.options[option].value, *value)
            reading.options[option] = Given(value, Origin("flag", name))
    return reading


def _values(
    name: str,
    texts: Mapping[str, list[str]],
    own: Mapping[str, Option],
    terms: Mapping[str, Term],
    notes: list[Note],
) -> dict[str, Any]:
    if name == POSITIONAL:
        return {"model": tuple(texts[name])}
    term = terms.get(name)
    # A foreign flag of an option's name is read where it takes values that the option itself would refuse.
    if term is not None and (name not in own or term.converts or term.effect != "same"):
        if term.requires and term.requires not in texts:
            notes.append(without_effect(term, name))
            return {}
        if term.takes == "switch":
            return translate(term, True, name, notes)
        if not term.converts and term.option is not None:
            tell(term, name, notes)
            return {term.option: parse(options()[term.option], texts[name], name)}
        return translate(term, texts[name][-1], name, notes)
    option = own.get(name)
    if option is None:
        return {own["--" + name.removeprefix("--no-")].name: False}
    return {option.name: True if option.shape == "switch" else parse(option, texts[name], name)}
