"""Chooses a model if none is named: one on this machine that chats and fits into memory."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pippin.cli.terminal import say, size, table
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.catalog import Catalog


@dataclass(frozen=True)
class Candidate:
    id: str
    footprint: int  # bytes in memory
    window: int | None
    words: str  # its quantisation or dtype

    def fits(self, memory: int) -> bool:
        return self.footprint <= memory


def candidates(catalog: "Catalog") -> list[Candidate]:
    """The models on this machine that chat, in the catalog's order."""
    from pippin.catalog import footprint

    return [
        Candidate(
            info.id,
            footprint(info, catalog.options_for(info)),
            info.context_window,
            info.quantization or info.dtype or "-",
        )
        for info in catalog.models()
        if info.kind == "language" and info.capabilities.chat
    ]


def choose(found: Sequence[Candidate], memory: int) -> str:
    """The model to talk to: the only one that fits, or the one that the user picks.

    Raises `ServerError` if none fits, or if there is no terminal to ask on.
    """
    fitting = [each for each in found if each.fits(memory)]
    if not fitting:
        said = "None of the models here fits into memory." if found else "No model that chats is here."
        raise ServerError(
            "model_not_found",
            f"{said} `pippin recommend` names models for this machine, `pippin pull ORG/NAME` fetches one.",
        )
    if len(fitting) == 1:
        return fitting[0].id
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        names = ", ".join(each.id for each in fitting)
        raise ServerError("invalid_request", f"Several models are here; name one: {names}.")
    rows = [
        (str(number), each.id, each.words, size(each.footprint), str(each.window or "-"))
        for number, each in enumerate(fitting, 1)
    ]
    say(table(("", "MODEL", "WEIGHTS", "MEMORY", "WINDOW"), rows), sys.stderr)
    return fitting[_ask(len(fitting)) - 1].id


def _ask(count: int) -> int:
    while True:
        sys.stderr.write(f"Which one? (1 to {count}; 1) ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            raise KeyboardInterrupt
        word = answer.strip() or "1"
        if word.isdigit() and 1 <= int(word) <= count:
            return int(word)
