"""Rebuilds the merges of a SentencePiece BPE vocabulary from its scores.

SentencePiece joins, at each moment, the neighbours whose union has the highest score. A list of merges in order of
those scores makes a rank-based BPE do the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final

LONGEST: Final = 256  # characters of a token that merges are looked for; the work grows with the square


def merges_from_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens whose union is a token: best score first, equal scores in order of ids."""
    found: list[tuple[float, int, int, int, str, str]] = []
    for token, number in ids.items():
        if not 1 < len(token) <= LONGEST:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            first, second = ids.get(left), ids.get(right)
            if first is not None and second is not None:
                found.append((-scores[number], number, first, second, left, right))
    found.sort(key=lambda merge: merge[:4])
    return [(left, right) for *_, left, right in found]
