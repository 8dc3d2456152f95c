"""Sampling agrees with plain numpy, row by row, and no row sees its neighbours."""

import math
from dataclasses import dataclass

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.core.parameters import OfEveryAnswer
from pippin.core.requests import Sampling
from pippin.engines.language.sampling import sampler
from pippin.engines.language.sampling.sampler import BatchSampler, Masks, choice_seed, uniform

VOCABULARY = 700  # more than the short path looks at
ROUNDING = 2e-5  # of a mass that is summed in float32


@dataclass
class Words:
    """As much of a tokenizer as sampling asks for."""

    eos: frozenset[int] = frozenset({2})
    line_ends: tuple[int, ...] = (3,)
    asked = OfEveryAnswer()

    def raw(self, token: int) -> bytes:
        return str(token).encode()


def logits_of(seed: int, rows: int, width: int = VOCABULARY, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, width)) * scale).astype(np.float32)


def edited(sampler: BatchSampler, logits: mx.array) -> mx.array:
    """The logits after penalties and bias."""
    return sampler._edited(sampler._planned(), logits, sampler._history, None)


def run(samplings: list[Sampling], seeds: list[int], logits: np.ndarray, steps: int = 1) -> np.ndarray:
    """Tokens [steps, B] of one batch; `logits` [steps, B, V]."""
    sampler = BatchSampler(Words())
    for sampling, seed in zip(samplings, seeds, strict=True):
        sampler.join(sampling, seed=seed, prompt=[5, 6, 7], logprobs=None)
    return np.stack([np.array(sampler.sample(mx.array(logits[step])).tokens) for step in range(steps)])


def kept(x: mx.array) -> list[set[int]]:
    return [set(np.flatnonzero(row > -np.inf).tolist()) for row in np.array(x)]


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp((row - row.max()).astype(np.float64))
    return weights / weights.sum()


# What each filter keeps, from its paper, without a thought for speed.


def reference_top_k(row: np.ndarray, k: int) -> set[int]:
    return set(np.argsort(-row)[:k].tolist())


def reference_top_p(row: np.ndarray, p: float) -> set[int]:
    probabilities = softmax(row)
    order = np.argsort(-probabilities)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    return set(order[before < p].tolist())


def reference_min_p(row: np.ndarray, p: float) -> set[int]:
    probabilities = softmax(row)
    return set(np.flatnonzero(probabilities >= p * probabilities.max()).tolist())


def reference_typical(row: np.ndarray, p: float) -> set[int]:
    probabilities = softmax(row)
    surprise = -np.log(probabilities)
    distance = np.abs(surprise - (probabilities * surprise).sum())
    order = np.argsort(distance)
    return set(order[: int((np.cumsum(probabilities[order]) < p).sum()) + 1].tolist())


def reference_sigma(row: np.ndarray, n: float) -> set[int]:
    return set(np.flatnonzero(row >= row.max() - n * row.std()).tolist())


def reference_p_less(row: np.ndarray, on: int) -> set[int]:
    probabilities = softmax(row)
    return set(np.flatnonzero(probabilities >= (probabilities**2).sum()).tolist())


def reckoned(reckon, column):
    """What a filter is given of a parameter [R, 1]."""
    return mx.array(reckon(np.array(column)))


REFERENCES = {
    "top_k": (
        lambda x, k: sampler.top_k(x, reckoned(sampler.last_of, k)),
        reference_top_k,
        [1, 3, 40, 699],
    ),
    "top_p": (
        lambda x, p: mx.log(sampler.top_p(sampler.weights(x), reckoned(sampler.rest_of, p))),
        reference_top_p,
        [0.05, 0.5, 0.9, 0.99],
    ),
    "min_p": (
        lambda x, p: mx.log(sampler.min_p(sampler.weights(x), p)),
        reference_min_p,
        [0.01, 0.1, 0.5, 1.0],
    ),
    "typical_p": (sampler.typical_p, reference_typical, [0.1, 0.5, 0.95]),
    "p_less": (sampler.p_less, reference_p_less, [1]),
    "top_n_sigma": (sampler.top_n_sigma, reference_sigma, [0.5, 1.0, 2.0]),
}


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from([0.05, 0.5, 0.9, 0.99, 0.9999, 1.0]), min_size=3, max_size=3),
)
@settings(max_examples=20, deadline=None)
def test_a_nucleus_looked_for_among_the_best_is_the_nucleus(seed: int, shares: list[float]) -> None:
    drawn = np.random.default_rng(seed).normal(size=(3, 5000)).astype(np.float32) * np.array(
        [[0.1], [3], [8]]
    )
    w = sampler.weights(mx.array(drawn.astype(np.float32)))
    narrowed = np.array(sampler.top_p_of_best(w, reckoned(sampler.rest_of, mx.array(shares)[:, None]))) > 0
    probabilities = np.array(w).astype(np.float64)
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    for row, inside, share in zip(probabilities, narrowed, shares, strict=True):
        last = row[inside].min()
        assert row[~inside].max(initial=0) < last, "the best are kept, and what ties with the last of them"
        assert row[inside].sum() > share - ROUNDING
        assert share == 1 or row[row > last].sum() < share + ROUNDING, "fewer would do"


@pytest.mark.parametrize("name", REFERENCES)
def test_a_filter_keeps_what_its_definition_keeps(name):
    narrow, reference, values = REFERENCES[name]
    for seed, value in enumerate(values):
        logits = logits_of(seed, 6)
        found = kept(narrow(mx.array(logits), mx.array([[value]] * 6)))
        for row, ids in zip(logits, found, strict=True):
            wanted = reference(row, value)
            # float32 sums may put the last token on the other side of the border
            assert len(ids ^ wanted) <= (1 if name in ("top_p", "typical_p") else 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 2**30),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("typical_p", 1.0),
        ("top_n_sigma", 0.0),
        ("p_less", 0),
    ],
)
def test_a_neutral_parameter_keeps_everything(name, value):
    logits = mx.array(logits_of(1, 2, scale=12.0))
    assert kept(REFERENCES[name][0](logits, mx.array([[value]] * 2))) == [set(range(VOCABULARY))] * 2


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_p_less_keeps_what_mlx_vlm_keeps(temperature: float) -> None:
    from mlx_vlm.sample_utils import apply_p_less

    logits = mx.array(logits_of(3, 4))
    wanted = kept(apply_p_less(logits, temperature))
    assert kept(sampler.p_less(logits / temperature, mx.ones((4, 1)))) == wanted


@pytest.mark.parametrize("name", REFERENCES)
def test_a_filter_keeps_what_a_mask_left_alone(name):
    narrow, _, values = REFERENCES[name]
    row = np.full((1, 50), -np.inf, np.float32)
    row[0, 17] = -3.0
    for value in values:
        assert kept(narrow(mx.array(row), mx.array([[value]]))) == [{17}]


def xtc(row: np.ndarray, threshold: float, on: bool, protected: list[bool]) -> list[set[int]]:
    left = sampler.xtc(mx.array(row), mx.array([[threshold]]), mx.array([[on]]), mx.array([protected]))
    return kept(mx.log(left))


def test_xtc_drops_the_top_choices_but_the_least_of_them():
    row, none = np.array([[0.5, 0.3, 0.15, 0.05]], np.float32) * 2, [False] * 4
    assert xtc(row, 0.1, True, none) == [{2, 3}]
    assert xtc(row, 0.1, False, none) == [{0, 1, 2, 3}]
    assert xtc(row, 0.1, True, [True, False, False, False]) == [{0, 2, 3}]
    assert xtc(row, 0.4, True, none) == [{0, 1, 2, 3}]


def test_the_draw_falls_where_the_cumulated_probability_says():
    row = np.array([[0.1, 0.2, 0.3, 0.4]], np.float32) * 3
    for number, column in [
        (0.0, 0),
        (0.05, 0),
        (0.15, 1),
        (0.29, 1),
        (0.31, 2),
        (0.59, 2),
        (0.61, 3),
        (0.999, 3),
    ]:
        assert sampler.draw(mx.array(row), mx.array([[number]])).item() == column


def test_a_masked_token_is_never_drawn():
    row = np.array([[0, 0, 0, 0.5, 0]], np.float32)
    for number in (0.0, 0.5, 1 - 2**-24):
        assert sampler.draw(mx.array(row), mx.array([[number]])).item() == 3


def test_uniform_numbers_are_uniform_and_apart():
    numbers = np.concatenate(
        [
            uniform(np.full(4000, seed, np.uint64), np.arange(4000, dtype=np.uint64), 0)
            for seed in (0, 1, 2**63)
        ]
    )
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.005
    assert len(set(numbers.tolist())) > 11990
    assert abs(np.corrcoef(numbers[:4000], numbers[4000:8000])[0, 1]) < 0.05
    assert choice_seed(7, 0) == 7
    assert len({choice_seed(7, choice) for choice in range(100)}) == 100


@pytest.mark.parametrize("top_k", [None, 50])
def test_draws_follow_the_distribution(top_k):
    logits = np.zeros((2000, 8), np.float32)
    logits[:] = np.log([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.04, 0.01])
    sampling = Sampling(temperature=1.0, top_k=top_k)
    tokens = run([sampling] * 2000, list(range(2000)), logits[None])[0]
    assert np.abs(np.bincount(tokens, minlength=8) / 2000 - softmax(logits[0])).max() < 0.03


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([None, 0.0, 0.7, 1.0, 1.8]),
    top_p=st.sampled_from([None, 0.3, 0.9]),
    top_k=st.sampled_from([None, 0, 5, 40, 400]),
    min_p=st.sampled_from([None, 0.05]),
    typical_p=st.sampled_from([None, 0.7]),
    top_n_sigma=st.sampled_from([None, 1.5]),
    xtc_probability=st.sampled_from([None, 0.5]),
    repetition_penalty=st.sampled_from([None, 1.3]),
    repetition_context=st.sampled_from([None, 0, 2]),
    presence_penalty=st.sampled_from([None, 0.8]),
    frequency_penalty=st.sampled_from([None, 0.5]),
    frequency_context=st.sampled_from([None, 3]),
    logit_bias=st.sampled_from([None, {5: 3.0, 9: -100.0}]),
)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(SAMPLINGS, min_size=2, max_size=5), seed=st.integers(0, 2**32), data=st.data())
def test_a_sequence_draws_the_same_tokens_alone_and_in_any_company(rows, seed, data):
    logits = np.stack([logits_of(seed + step, len(rows), scale=1.5) for step in range(5)])
    seeds = [seed + row for row in range(len(rows))]
    together = run(rows, seeds, logits, 5)
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = run([rows[row] for row in order], [seeds[row] for row in order], logits[:, order], 5)
    assert (shuffled == together[:, order]).all()
    alone = data.draw(st.integers(0, len(rows) - 1))
    assert (run([rows[alone]], [seeds[alone]], logits[:, [alone]], 5)[:, 0] == together[:, alone]).all()


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(SAMPLINGS, min_size=3, max_size=3), seed=st.integers(0, 1000))
def test_a_sequence_goes_on_unmoved_when_others_join_and_leave(rows, seed):
    logits = np.stack([logits_of(seed + step, 3) for step in range(6)])
    together = run(rows, [1, 2, 3], logits, 6)
    sampler = BatchSampler(Words())
    sampler.join(rows[0], seed=1, prompt=[5, 6, 7], logprobs=None)
    sampler.join(rows[1], seed=2, prompt=[5, 6, 7], logprobs=None)
    for step in range(2):
        sampler.sample(mx.array(logits[step, :2]))
    sampler.join(rows[2], seed=99, prompt=[1], logprobs=None)
    sampler.sample(mx.array(logits[2]))
    sampler.leave([2, 1])
    for step in (3, 4, 5):
        tokens = np.array(sampler.sample(mx.array(logits[step, [2, 1]])).tokens)
        assert tokens[1] == together[step, 1]


def test_a_sequence_resumes_after_preemption_where_it_stopped():
    sampling = Sampling(temperature=1.0, presence_penalty=0.5, repetition_penalty=1.2)
    logits = np.stack([logits_of(step, 1) for step in range(8)])
    whole = run([sampling], [11], logits, 8)[:, 0]
    sampler = BatchSampler(Words())
    sampler.join(sampling, seed=11, prompt=[5, 6, 7, *whole[:4].tolist()], logprobs=None, generated=4)
    assert [sampler.sample(mx.array(logits[step])).tokens.item() for step in range(4, 8)] == whole[
        4:
    ].tolist()


def reference_penalties(
    row: np.ndarray, sampling: Sampling, prompt: list[int], output: list[int]
) -> np.ndarray:
    def last(tokens: list[int], context: int | None) -> list[int]:
        return tokens if context is None else tokens[len(tokens) - min(context, len(tokens)) :]

    row = row.astype(np.float64)
    for token in set(last(prompt + output, sampling.repetition_context)):
        by = sampling.repetition_penalty or 1.0
        row[token] = row[token] * by if row[token] < 0 else row[token] / by
    for token in last(output, sampling.frequency_context):
        row[token] -= sampling.frequency_penalty or 0.0
    for token in set(last(output, sampling.presence_context)):
        row[token] -= sampling.presence_penalty or 0.0
    return row


@given(
    prompts=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=30), min_size=1, max_size=4),
    outputs=st.lists(st.lists(st.integers(0, 7), max_size=12), min_size=4, max_size=4),
    samplings=st.lists(
        st.builds(
            Sampling,
            repetition_penalty=st.sampled_from([None, 1.5, 0.8]),
            repetition_context=st.sampled_from([None, 0, 1, 5]),
            presence_penalty=st.sampled_from([None, 1.0, -0.5]),
            presence_context=st.sampled_from([None, 0, 2]),
            frequency_penalty=st.sampled_from([None, 0.5]),
            frequency_context=st.sampled_from([None, 3]),
        ),
        min_size=4,
        max_size=4,
    ),
)
def test_penalties_are_those_of_the_definition(prompts, outputs, samplings):
    logits = logits_of(3, len(prompts), width=8)
    sampler = BatchSampler(Words())
    for prompt, output, sampling in zip(prompts, outputs, samplings, strict=False):
        sampler.join(sampling, seed=0, prompt=prompt + output, logprobs=None, generated=len(output))
    found = np.array(edited(sampler, mx.array(logits)))
    for row in range(len(prompts)):
        wanted = reference_penalties(logits[row], samplings[row], prompts[row], outputs[row])
        np.testing.assert_allclose(found[row], wanted, rtol=1e-5, atol=1e-5)


def test_tokens_without_a_logit_change_nothing_of_another_row():
    """Some models know the markers of pictures by ids beyond their logits."""
    logits = logits_of(3, 2, width=8)
    penalised = Sampling(
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        logit_bias={9: 50.0},
    )

    def edited_of(prompt):
        sampler = BatchSampler(Words())
        sampler.join(penalised, seed=0, prompt=prompt, logprobs=None, generated=1, vocabulary=8)
        sampler.join(Sampling(), seed=0, prompt=[1], logprobs=None, vocabulary=8)
        return np.array(edited(sampler, mx.array(logits)))

    found = edited_of([1, 8, 12, 2, 15, 4])
    np.testing.assert_array_equal(found, edited_of([1, 2, 4]))
    np.testing.assert_array_equal(found[1], logits[1])


def test_greedy_sequences_take_the_best_and_bias_moves_it():
    logits = logits_of(0, 3)
    best = logits.argmax(axis=1)
    assert (run([Sampling()] * 3, [0] * 3, logits[None])[0] == best).all()
    moved = run(
        [Sampling(), Sampling(logit_bias={4: 100.0}), Sampling(temperature=1.0)], [0] * 3, logits[None]
    )[0]
    assert moved[:2].tolist() == [best[0], 4]


@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-30, 1e-38, 1e-45, 1e-320])
def test_next_to_no_temperature_takes_the_best(temperature: float) -> None:
    logits = logits_of(9, 3, scale=30.0)
    warm = Sampling(temperature=temperature)
    samplings = [warm, msgspec.structs.replace(warm, top_k=20), msgspec.structs.replace(warm, top_p=0.9)]
    assert run(samplings, [1, 2, 3], logits[None])[0].tolist() == logits.argmax(-1).tolist()


def test_only_what_a_mask_allows_is_chosen():
    logits = logits_of(0, 4)
    sampler = BatchSampler(Words())
    for temperature in (0.0, 1.0, 0.0, 1.0):
        sampler.join(Sampling(temperature=temperature, top_p=0.5), seed=1, prompt=[1], logprobs=0)
    masks = np.zeros((2, 2), np.int32)  # fewer words than tokens: what is beyond is out
    masks[0, 1] = 1 << 3
    masks[1, 0] = -(2**31)
    sampled = sampler.sample(mx.array(logits), Masks([1, 2], masks))
    assert np.array(sampled.tokens)[1:3].tolist() == [35, 31]
    assert np.array(sampled.tokens)[0] == logits[0].argmax()


def test_the_callers_logits_are_left_alone():
    logits = mx.array(logits_of(0, 2))
    before = np.array(logits)
    sampler = BatchSampler(Words())
    sampler.join(Sampling(logit_bias={1: 5.0}, repetition_penalty=2.0), seed=0, prompt=[1, 2], logprobs=None)
    sampler.join(Sampling(temperature=1.0), seed=0, prompt=[1, 2], logprobs=None)
    sampler.sample(logits, Masks([0], np.full((1, 22), 1, np.int32)))
    assert (np.array(logits) == before).all()


def test_logprobs_are_the_models_own_and_only_of_sequences_that_ask():
    logits = logits_of(0, 4)
    sampler = BatchSampler(Words())
    for row, asked in enumerate((None, 0, 3, 5)):
        sampler.join(
            Sampling(temperature=2.0 if row % 2 else 0.0, top_k=3), seed=row, prompt=[1], logprobs=asked
        )
    choices = sampler.sample(mx.array(logits)).read(Words())
    assert choices[0].logprob is None
    for row, count in ((1, 0), (2, 3), (3, 5)):
        wanted = np.log(softmax(logits[row]))
        assert math.isclose(choices[row].logprob, wanted[choices[row].token], abs_tol=1e-4)
        assert [top.id for top in choices[row].top] == np.argsort(-logits[row])[:count].tolist()
        assert all(math.isclose(top.logprob, wanted[top.id], abs_tol=1e-4) for top in choices[row].top)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_host_finds_the_best_token_that_the_device_finds(dtype):
    numbers = np.random.default_rng(3).integers(0, 9, (4, VOCABULARY)).astype(np.float32)  # many are alike
    numbers[1] = -np.inf
    samplings = [Sampling(temperature=0.0)] * 3 + [Sampling(temperature=1.0)]
    for count in (3, 4):
        found = []
        for sorts_slowly in (False, True):
            sampler = BatchSampler(Words(), sorts_slowly)
            for sampling in samplings[:count]:
                sampler.join(sampling, seed=7, prompt=[1], logprobs=None)
            tokens = sampler.sample(mx.array(numbers[:count]).astype(dtype)).tokens
            assert tokens.dtype == mx.int32
            found.append(tokens.tolist())
        assert found[0] == found[1]
        assert found[0][:3] == numbers[:3].argmax(-1).tolist()


def test_all_greedy_sequences_cost_one_argmax():
    sampler = BatchSampler(Words())
    for _ in range(3):
        sampler.join(Sampling(temperature=0.0, top_p=0.5), seed=0, prompt=[1], logprobs=None)
    logits = mx.array(logits_of(0, 3)).astype(mx.bfloat16)
    assert edited(sampler, logits) is logits


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(SAMPLINGS, min_size=1, max_size=4), seed=st.integers(0, 1000), data=st.data())
def test_sampling_ahead_and_committing_is_the_same_as_sampling(rows, seed, data):
    logits = np.stack([logits_of(seed + step, len(rows)) for step in range(6)])
    seeds = list(range(len(rows)))
    one_by_one = run(rows, seeds, logits, 6)
    sampler = BatchSampler(Words())
    for sampling, row_seed in zip(rows, seeds, strict=True):
        sampler.join(sampling, seed=row_seed, prompt=[5, 6, 7], logprobs=None)
    done = np.zeros(len(rows), int)
    while (done < 6).any():
        ahead = np.stack(
            [logits[np.minimum(done + place, 5), range(len(rows))] for place in range(3)], axis=1
        )
        proposals = np.stack(
            [one_by_one[np.minimum(done + place, 5), range(len(rows))] for place in range(2)], axis=1
        )
        wrong = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
        for row, place in enumerate(wrong):
            if place < 2:
                proposals[row, place] = (proposals[row, place] + 1) % VOCABULARY
        found = np.stack(
            [np.array(s.tokens) for s in sampler.sample_ahead(mx.array(ahead), proposals)], axis=1
        )
        counts = np.minimum([min(place + 1, 3) for place in wrong], np.maximum(6 - done, 0)).astype(np.int32)
        for row in range(len(rows)):
            assert (found[row, : counts[row]] == one_by_one[done[row] : done[row] + counts[row], row]).all()
        sampler.commit(found, counts)
        done += counts
