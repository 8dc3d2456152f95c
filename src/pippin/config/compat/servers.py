"""The replaced servers, and the meaning of a foreign name with or without a profile."""

from collections.abc import Iterable
from functools import cache
from typing import Final

from pippin.config.compat import mlx_lm_server, mlx_openai_server, mlx_server, mlx_vlm, vllm_mlx
from pippin.config.compat.terms import Server, Term
from pippin.config.options.start import Compat

SERVERS: Final[dict[Compat, Server]] = {
    "mlx-vlm": mlx_vlm.SERVER,
    "mlx-server": mlx_server.SERVER,
    "mlx-openai-server": mlx_openai_server.SERVER,
    "vllm-mlx": vllm_mlx.SERVER,
    "mlx-lm": mlx_lm_server.SERVER,
}


def in_order(compat: Compat | None) -> Iterable[Server]:
    """The servers, the profile's first: its meaning counts where two servers give a name different meanings."""
    return sorted(SERVERS.values(), key=lambda server: server.name != compat)


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
    if compat is not None and any(known is own for own in SERVERS[compat].flags):
        return False
    return term.convert is not None and known.convert is None


@cache
def variable_terms(compat: Compat | None) -> dict[str, Term]:
    """The term of each foreign variable. Common names such as `PORT` are read only under their server's profile."""
    return {
        term.name: term
        for server in reversed(list(in_order(compat)))
        for term in server.variables
        if server.name == compat or term.name not in server.general_variables
    }
