"""Reads what each replaced server's names mean, with or without its profile.

Each server has a file in this folder. Its `flags`, `variables`, `keys`, `settings` and `mcp_keys` map a name to a
`Term`: the effect with its option (`same`, `equivalent`) or its reason (`needless`, `refused`), and what else the
term has. `*name` is a reason of its `notes`. The files are JSON because every command reads them: YAML takes 40 ms.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pippin.config.compat.terms import EFFECTS, Server, Term
from pippin.config.options.declaration import options
from pippin.config.options.start import Compat
from pippin.core.decoding import convert, from_json


@cache
def servers() -> Mapping[Compat, Server]:
    return {name: _server(name) for name in get_args(Compat)}


def _server(name: Compat) -> Server:
    data: dict[str, Any] = from_json(Path(__file__).with_name(f"{name}.json").read_bytes())
    for part in ("flags", "variables", "keys", "settings", "mcp_keys"):
        data[part] = [_term(name, given, data.get("notes", {})) for name, given in data.get(part, {}).items()]
    lists = {option: tuple(value) for option, value in data["profile"].items() if isinstance(value, list)}
    return convert(data | {"name": name, "profile": data["profile"] | lists}, Server)


def _term(name: str, given: Mapping[str, Any], notes: Mapping[str, str]) -> Term:
    [effect] = [effect for effect in EFFECTS if effect in given]
    said = "option" if effect in ("same", "equivalent") else "note"
    fields = {said if key == effect else key: value for key, value in given.items()}
    if fields.get("note", "").startswith("*"):
        fields["note"] = notes[fields["note"][1:]]
    return convert({"name": name, "effect": effect, **fields}, Term)


def in_order(compat: Compat | None) -> Iterable[Server]:
    """The servers, the profile's first: its meaning counts where two servers give a name different meanings."""
    return sorted(servers().values(), key=lambda server: server.name != compat)


@cache
def flag_terms(compat: Compat | None) -> dict[str, Term]:
    """The term of each foreign flag. Where several servers have a flag, a term with a conversion is preferred. A flag
    of Pippin's own means something else only under the profile of the server where it does."""
    terms: dict[str, Term] = {}
    own = {option.flag for option in options().values()}
    for server in in_order(compat):
        for term in server.flags:
            if server.name != compat and term.effect != "same" and term.name in own:
                continue
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
