"""The best tokens of a vocabulary are found in its blocks, in the order in which a sort of all would give them."""

import mlx.core as mx
import numpy as np
import pytest

from pippin.engines.language.sampling.sampler import BLOCK, best

WIDTHS = [1, 15, 16, 300, 2 * BLOCK * 20, 2 * BLOCK * 20 - 1, 10_000, 49_152, 50_257]


def logits(rows: int, width: int, values: int, seed: int) -> np.ndarray:
    """Numbers of which many tie, as those of 16 bits do; a row has few that are not out."""
    chance = np.random.default_rng(seed)
    drawn = chance.integers(0, values, (rows, width)).astype(np.float32)
    drawn[0, chance.random(width) < 0.999] = -np.inf
    return drawn


@pytest.mark.parametrize("values", [3, 40, 1 << 20])
@pytest.mark.parametrize("count", [1, 5, 20, 256])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_best_are_those_of_a_sort_of_all(width: int, count: int, values: int) -> None:
    count = min(count, width)
    given = logits(4, width, values, seed=width + count)
    order = np.argsort(-given, axis=-1, kind="stable")[:, :count]
    ids, found = best(mx.array(given), count, sorts_slowly=False)
    assert np.array_equal(np.array(ids), order)
    assert np.array_equal(np.array(found), np.take_along_axis(given, order, axis=-1))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_partition_finds_as_good_ones(width: int) -> None:
    count = min(20, width)
    given = logits(4, width, 40, seed=width)
    ids, found = best(mx.array(given), count, sorts_slowly=True)
    assert np.array_equal(np.array(found), -np.sort(-given, axis=-1)[:, :count])
    assert np.array_equal(np.take_along_axis(given, np.array(ids).astype(int), axis=-1), np.array(found))
    assert all(len(set(row)) == count for row in np.array(ids).tolist())
