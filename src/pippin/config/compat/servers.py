"""Reads what each replaced server's names mean, with or without its profile.

Each server has a file in this folder. Its `flags`, `variables`, `keys`, `settings` and `mcp_keys` map a name to a
`Term`: the effect with its option (`same`, `equivalent`) or its reason (`needless`, `refused`), and what else the
term has. `*name` is a reason of its `notes`. The files are JSON because every command reads them: YAML takes 40 ms.
"""

from collections.abc import Mapping
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


@cache
def flag_terms(compat: Compat | None) -> dict[str, Term]:
    """The term of each foreign flag: that of the profile's server. Of other servers that have a flag, a term with a
    conversion is preferred, and a flag of Pippin's own means what it does in Pippin."""
    terms: dict[str, Term] = {}
    own = {option.flag for option in options().values()}
    for term in (term for server in servers().values() for term in server.flags):
        known = terms.get(term.name)
        foreign = term.effect == "same" or term.name not in own
        if foreign and (known is None or (term.converts and not known.converts)):
            terms[term.name] = term
    return terms if compat is None else terms | {term.name: term for term in servers()[compat].flags}


@cache
def variable_terms(compat: Compat | None) -> dict[str, Term]:
    """The term of each foreign variable: that of the profile's server, which comes last, else of the first that has it.
    Common names such as `PORT` are read only under their server's profile."""
    ordered = [*servers().values()][::-1]
    ordered.sort(key=lambda server: server.name == compat)
    return {
        term.name: term
        for server in ordered
        for term in server.variables
        if server.name == compat or term.name not in server.general_variables
    }
