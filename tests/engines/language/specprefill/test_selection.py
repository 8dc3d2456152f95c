"""Which tokens of a prompt are kept."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pippin.engines.language.specprefill.selection import CHUNK, SMOOTHED, Share, choose


@given(
    length=st.integers(1, 700),
    known=st.floats(0, 0.99),
    keep=st.floats(0.01, 1),
    backbone=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_each_kept_token_has_its_position(
    length: int, known: float, keep: float, backbone: float, seed: int
) -> None:
    importance = np.random.default_rng(seed).random(length).astype(np.float32)
    first = int(known * length)
    found = choose(importance, Share(keep, backbone), first)
    tokens = [place * 3 for place in range(length)]
    kept = found.of([*tokens, -1, -2])
    assert kept[-2:] == (-1, -2)
    assert kept[-3] == tokens[-1]
    assert kept[:first] == tuple(tokens[:first])
    assert found.kept == length - found.left_out
    for index in range(found.kept):
        assert kept[index] == tokens[found.position(index)]
    exact = found.exact(found.kept)
    assert list(kept[:exact]) == tokens[:exact]
    assert found.position(found.kept) == length  # what comes after the prompt


def test_the_most_important_chunks_are_kept() -> None:
    importance = np.full(20 * CHUNK, 0.1, np.float32)
    importance[5 * CHUNK + SMOOTHED : 5 * CHUNK + 2 * SMOOTHED] = 1
    found = choose(importance, Share(0.1))
    assert [(span.start, span.stop) for span in found.spans] == [
        (5 * CHUNK, 6 * CHUNK),
        (19 * CHUNK, 20 * CHUNK),
    ]


def test_all_is_kept_of_a_share_of_one() -> None:
    found = choose(np.zeros(1000, np.float32), Share(1.0), 17)
    assert (found.left_out, found.exact(1000)) == (0, 1000)


def test_the_backbone_is_spread_over_the_prompt() -> None:
    importance = np.zeros(100 * CHUNK, np.float32)
    importance[: 50 * CHUNK] = 1
    starts = [span.start // CHUNK for span in choose(importance, Share(0.2, backbone=0.5)).spans]
    assert sum(start >= 50 for start in starts) >= 5
    alone = choose(importance, Share(0.2)).spans
    assert [span.start // CHUNK for span in alone if span.start >= 50 * CHUNK] == [99]
