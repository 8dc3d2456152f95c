"""What a draw costs: the operations that it queues on a GPU, and how often it sorts a vocabulary."""

import io
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.core.parameters import OfEveryAnswer
from pippin.core.requests import Sampling
from pippin.engines.language.sampling.sampler import BLOCK, SHORT, BatchSampler, Masks
from tests.as_on_a_mac.test_step_operations import VIEWS

VOCABULARY = 49_152
WORDS: Any = SimpleNamespace(line_ends=(1,), eos=(2,), asked=OfEveryAnswer())


SHORTENED = VOCABULARY // BLOCK + SHORT * BLOCK + SHORT
"""The best of each block, the blocks with the best of them, and the tokens of these."""


def sorted_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers of a row each sort has from now on."""
    found: list[int] = []

    def watching(own: Any) -> Any:
        def watched(array: mx.array, *given: Any, **named: Any) -> mx.array:
            found.append(array.shape[-1] if named.get("axis", -1) == -1 else array.shape[-2])
            return own(array, *given, **named)

        return watched

    for name in ("sort", "argsort", "partition", "argpartition", "topk"):
        monkeypatch.setattr(mx, name, watching(getattr(mx, name)))
    return found


def operations_of_a_draw(
    sampling: Sampling, rows: int, *, logprobs: int | None = None, masked: bool = False
) -> Counter[str]:
    sampler = BatchSampler(WORDS)
    for row in range(rows):
        sampler.join(sampling, seed=row, prompt=(0,), logprobs=logprobs, vocabulary=VOCABULARY)
    logits = mx.zeros((rows, VOCABULARY), mx.bfloat16)
    words = np.full((rows, VOCABULARY // 32), -1, np.int32)
    masks = Masks(list(range(rows)), words) if masked else None
    written = io.StringIO()
    for _ in range(2):  # what is made when a row joins is no part of later draws
        written = io.StringIO()
        drawn = sampler.sample(logits, masks).arrays()
        mx.export_to_dot(written, *drawn)
        mx.eval(drawn)
    return Counter(re.findall(r'label ="(\w+)"', written.getvalue()))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    ("sampling", "all_of_them", "computed", "most_sorted"),
    [
        (Sampling(temperature=0), 3, 2, 0),
        (Sampling(temperature=0.7), 19, 12, 0),
        (Sampling(temperature=0.7, min_p=0.05), 23, 15, 0),
        (Sampling(temperature=0.7, top_k=20), 52, 28, SHORTENED),
        (Sampling(temperature=0.7, top_p=0.8), 31, 21, VOCABULARY),
        (Sampling(temperature=0.7, top_k=20, top_p=0.8), 64, 36, SHORTENED),
        (Sampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.05), 68, 39, SHORTENED),
        (Sampling(temperature=0, repetition_penalty=1.1), 19, 12, 0),
    ],
    ids=["greedy", "temperature", "min-p", "top-k", "top-p", "top-k and top-p", "these and min-p", "penalty"],
)
def test_a_draw_queues_no_more_operations_and_sorts_no_more_than_it_must(
    sampling: Sampling,
    all_of_them: int,
    computed: int,
    most_sorted: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = sorted_by(monkeypatch)
    found = operations_of_a_draw(sampling, rows)
    assert found.total() <= all_of_them
    assert sum(count for name, count in found.items() if name not in VIEWS) <= computed
    assert sum(sizes) == 2 * most_sorted, "two draws"


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    ("sampling", "more", "computed", "sorts"),
    [
        ({}, {"masked": True}, 6, 0),
        ({}, {"logprobs": 0}, 8, 0),
        ({}, {"logprobs": 5}, 25, 0),
        ({"logit_bias": {3: 1.0, 4: 2.0}}, {}, 3, 0),
        ({"presence_penalty": 0.1, "frequency_penalty": 0.1}, {}, 14, 0),
        ({"presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1}, {}, 22, 0),
        ({"temperature": 0.7, "xtc_probability": 0.5, "xtc_threshold": 0.1}, {}, 25, 0),
        ({"temperature": 0.7, "top_n_sigma": 1.0}, {}, 32, 0),
        ({"temperature": 0.7, "typical_p": 0.9}, {}, 36, 1),
        ({"temperature": 0.7, "p_less": 1}, {}, 19, 0),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.8}, {"masked": True}, 39, 0),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else None,
)
def test_whatever_else_a_draw_is_asked_for_is_bounded_as_well(
    sampling: dict[str, Any],
    more: dict[str, Any],
    computed: int,
    sorts: int,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = sorted_by(monkeypatch)
    found = operations_of_a_draw(Sampling(**{"temperature": 0, **sampling}), rows, **more)
    assert sum(count for name, count in found.items() if name not in VIEWS) <= computed
    assert sum(size == VOCABULARY for size in sizes) == 2 * sorts, sizes
