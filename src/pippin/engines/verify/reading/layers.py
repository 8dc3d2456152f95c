"""Layers without which a model reads an ordinary text better."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from pippin.core.errors import ServerError
from pippin.core.verification import Finding
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.verify.findings import finding
from pippin.engines.verify.reading.perplexity import Surprise

AT_ONCE: Final = 8
"""Layers that are left out in one pass, each in a row of its own."""
FEW: Final = 96
"""The tokens by which the worst layer is chosen; what it does is told by all."""


def check(without: Callable[[range, int | None], list[Surprise]], own: Surprise) -> Iterator[Finding]:
    """Leave out one layer after the other. `without` tells how surprising the first so many tokens of a text are
    without each of these layers, as far as there are any. To a sound model each is of use."""
    gains: list[float] = []
    # Layers that give each other more than states fail.
    with suppress(ServerError, *FAILURES):
        while len(gains) % AT_ONCE == 0:
            found = without(range(len(gains), len(gains) + AT_ONCE), FEW)
            if not found:
                break
            gains += [float(own.each[:, : each.each.size].mean() - each.each.mean()) for each in found]
        if max(gains, default=0.0) > 0:
            worst = gains.index(max(gains))
            [best] = without(range(worst, worst + 1), None)
            if best.clearly_beats(own):
                yield finding("layer-harms", layer=worst, bits=own.bits, other=best.bits)
