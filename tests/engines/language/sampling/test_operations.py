"""What a draw costs a GPU: the operations that it queues, and how often it sorts the vocabulary."""

import io
import re
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from pippin.core.requests import Sampling
from pippin.engines.language.sampling.sampler import BatchSampler, usual_draws
from tests.engines.language.sampling.test_sampling import Words

VOCABULARY = 9000
VIEWS = {"Broadcast", "ExpandDims", "Reshape", "Slice", "Squeeze"}
"""Operations for which a GPU computes nothing."""
SORTS = {"ArgPartition", "ArgSort", "Partition", "Sort"}
GREEDY = Sampling(temperature=0)
QWEN = Sampling(temperature=0.7, top_p=0.8, top_k=20)
NUCLEUS = Sampling(temperature=0.6, top_p=0.95)
PENALISED = Sampling(temperature=0.6, top_p=0.95, repetition_penalty=1.1)


def operations(*rows: Sampling, logprobs: int | None = None) -> Counter[str]:
    """The operations of one draw for these rows, by their names."""
    sampler = BatchSampler(Words())
    for seed, row in enumerate(rows):
        sampler.join(row, seed=seed, prompt=[5, 6, 7], logprobs=logprobs, vocabulary=VOCABULARY)
    return _operations_of(sampler.sample(_logits(len(rows))).arrays())


def _logits(rows: int) -> mx.array:
    logits = mx.array(np.zeros((rows, VOCABULARY), np.float32)).astype(mx.bfloat16)
    mx.eval(logits)
    return logits


def _operations_of(arrays: list[mx.array]) -> Counter[str]:
    written = io.StringIO()
    mx.export_to_dot(written, *arrays)
    return Counter(re.findall(r'label ="(\w+)"', written.getvalue()))


@pytest.mark.parametrize(
    ("rows", "most"),
    [
        pytest.param([GREEDY], 2, id="greedy"),
        pytest.param([GREEDY] * 8, 2, id="8 greedy"),
        pytest.param([Sampling(temperature=1.0)], 12, id="temperature"),
        pytest.param([QWEN], 37, id="top-k and top-p"),
        pytest.param([QWEN] * 8, 37, id="8 with top-k and top-p"),
        pytest.param([NUCLEUS], 26, id="top-p"),
        pytest.param([PENALISED], 36, id="penalised"),
        pytest.param([GREEDY, QWEN, NUCLEUS], 69, id="one of each"),
    ],
)
def test_a_draw_queues_no_more_operations(rows: list[Sampling], most: int) -> None:
    found = operations(*rows)
    assert sum(count for name, count in found.items() if name not in VIEWS) <= most


@pytest.mark.parametrize(
    ("rows", "sorts"),
    [([GREEDY], 0), ([Sampling(temperature=1.0)], 0), ([QWEN], 1), ([NUCLEUS], 1), ([QWEN, NUCLEUS], 2)],
)
def test_a_draw_sorts_the_vocabulary_once_for_rows_that_need_it(rows: list[Sampling], sorts: int) -> None:
    found = operations(*rows)
    assert sum(found[name] for name in SORTS) == sorts


ASKED = {
    "greedy": [GREEDY],
    "temperature": [Sampling(temperature=1.0)],
    "top-k and top-p": [QWEN],
    "top-p": [NUCLEUS],
    "penalised": [PENALISED],
    "one of each": [GREEDY, QWEN, NUCLEUS, PENALISED],
    "min-p": [Sampling(temperature=1.0, min_p=0.1)],
    "biased": [Sampling(temperature=0, logit_bias={3: 2.0})],
}


@pytest.mark.parametrize("logprobs", [None, 0, 5])
@pytest.mark.parametrize("asked", ASKED)
def test_no_client_waits_for_the_compiler_of_a_usual_draw(asked: str, logprobs: int | None) -> None:
    compiled = _operations_of(usual_draws(Words(), _logits(1)))
    assert operations(*ASKED[asked], logprobs=logprobs).keys() <= compiled.keys()
