"""Reads what each replaced server's names mean, with or without its profile.

Each server has a YAML file in this folder. Its `flags`, `variables`, `keys`, `settings` and `mcp_keys` map a name to a
`Term`: the effect with its option (`same`, `equivalent`) or its reason (`needless`, `refused`), and what else the
term has.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, get_args

from pippin.config.compat.terms import EFFECTS, Server, Term
from pippin.config.options.start import Compat
from pippin.core.decoding import convert


@cache
def servers() -> Mapping[Compat, Server]:
    return {name: _server(name) for name in get_args(Compat)}


def _server(name: Compat) -> Server:
    # Commands that ask for no foreign name do without it: importing it takes as long as all else that they import.
    import yaml

    text = resources.files("pippin.config.compat").joinpath(f"{name}.yaml").read_bytes()
    # libyaml's parser, where the wheel has it, takes a tenth of the time of Python's.
    data: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for part in ("flags", "variables", "keys", "settings", "mcp_keys"):
        data[part] = [_term(name, given) for name, given in data.get(part, {}).items()]
    lists = {option: tuple(value) for option, value in data["profile"].items() if isinstance(value, list)}
    return convert(data | {"name": name, "profile": data["profile"] | lists}, Server)


def _term(name: str, given: Mapping[str, Any]) -> Term:
    [effect] = [effect for effect in EFFECTS if effect in given]
    said = "option" if effect in ("same", "equivalent") else "note"
    more = {key: value for key, value in given.items() if key != effect}
    return convert({"name": name, "effect": effect, said: given[effect], **more}, Term)


def in_order(compat: Compat | None) -> Iterable[Server]:
    """The servers, the profile's first: its meaning counts where two servers give a name different meanings."""
    return sorted(servers().values(), key=lambda server: server.name != compat)


@cache
def flag_terms(compat: Compat | None) -> dict[str, Term]:
    """The term of each foreign flag. Where several servers have a flag, a term with a conversion is preferred."""
    terms: dict[str, Term] = {}
    for server in in_order(compat):
        for term in server.flags:
            known = terms.get(term.name)
            if known is None or (server.name != compat and _says_more(term, known, compat)):
                terms[term.name] = term
    return terms


def _says_more(term: Term, known: Term, compat: Compat | None) -> bool:
    if compat is not None and any(known is own for own in servers()[compat].flags):
        return False
    return term.converts and not known.converts


@cache
def variable_terms(compat: Compat | None) -> dict[str, Term]:
    """The term of each foreign variable. Common names such as `PORT` are read only under their server's profile."""
    return {
        term.name: term
        for server in reversed(list(in_order(compat)))
        for term in server.variables
        if server.name == compat or term.name not in server.general_variables
    }
