"""Training a draft head: its own gradients, and that a head learns what a model says and drafts it in the engine."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from benchmarks.head_operations import attended, distilled, gated
from benchmarks.head_training import (
    Example,
    Known,
    Recipe,
    begun,
    configuration,
    hits,
    start_of,
    train,
    write,
)
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.engines.language.loading import drafting
from tests.engines.language.bench import Bench, Eager, run_all
from tests.engines.tiny_models import tiny_model

LAYERS = (0, 1, 3)


def plain_attention(
    queries: mx.array, keys: mx.array, values: mx.array, own_keys: mx.array, own_values: mx.array
) -> mx.array:
    count, scale = queries.shape[-2], queries.shape[-1] ** -0.5
    read = queries @ keys[:, :, None].swapaxes(-1, -2) * scale + mx.triu(mx.full((count, count), -1e9), 1)
    drafted = (queries[..., None, :] * own_keys[:, :, None]).sum(-1) * scale
    weights = mx.softmax(mx.concatenate([read, drafted], axis=-1), axis=-1)
    return weights[..., :count] @ values[:, :, None] + (
        weights[..., count:, None] * own_values[:, :, None]
    ).sum(-2)


def alike(found: Callable[..., mx.array], expected: Callable[..., mx.array], given: list[mx.array]) -> None:
    """Both functions, and their gradients by all that they are given."""
    weights = mx.random.normal(expected(*given).shape)
    places = list(range(len(given)))
    values, gradients = mx.value_and_grad(lambda *all_: (found(*all_) * weights).sum(), places)(*given)
    others, theirs = mx.value_and_grad(lambda *all_: (expected(*all_) * weights).sum(), places)(*given)
    assert values.item() == pytest.approx(others.item(), rel=1e-4)
    for mine, other in zip(gradients, theirs, strict=True):
        assert mx.allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ahead", [0, 2])
def test_attention_and_its_gradients_are_those_that_mlx_finds(ahead: int) -> None:
    mx.random.seed(1)
    shapes = [(2, 3, 2, 7, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 7, ahead, 8), (2, 3, 7, ahead, 8)]
    given = [mx.random.normal(shape) for shape in shapes]
    alike(lambda *all_: attended(*all_)[0], plain_attention, given)


def test_the_gate_and_the_loss_and_their_gradients_are_those_that_mlx_finds() -> None:
    mx.random.seed(2)
    alike(gated, lambda gate, up: nn.silu(gate) * up, [mx.random.normal((5, 6)) for _ in range(2)])
    rows, theirs, labels = mx.random.normal((11, 6)), mx.random.normal((5, 6)), mx.arange(5)

    def plain(states: mx.array) -> mx.array:
        logits = states @ rows.T
        wanted = 0.5 * mx.softmax(theirs @ rows.T, axis=-1) + 0.5 * mx.eye(11)[labels]
        return -(wanted * (logits - mx.logsumexp(logits, axis=-1, keepdims=True))).sum()

    alike(lambda states: distilled(states, rows, labels, theirs)[0], plain, [mx.random.normal((5, 6))])


def test_a_head_learns_what_its_model_says_and_drafts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of a few words that come in one order, of which the tiny model knows nothing: labels are what they say."""
    folder = tiny_model("llama", tmp_path / "model", num_hidden_layers=4)
    model, _ = load_model(folder)
    draw, order = Random(4), Random(5).sample(range(100), 40)
    begins = [draw.randrange(40) for _ in range(40)]
    texts = [[order[(begin + place) % 40] for place in range(30)] for begin in begins]
    learnt = [Example(np.array(text, np.int32), states_of(model, text), 3) for text in texts]
    words = np.array(sorted(order), np.int64)
    index_of = np.full(model.args.vocab_size, -1, np.int32)
    index_of[words] = np.arange(len(words))
    config = configuration(model, LAYERS, len(words))
    begin = start_of(learnt, np.array(model.model.embed_tokens.weight))
    known = Known(index_of, np.array(model.model.norm.weight), begin.size)
    head = begun(model, config, words, begin)
    before = hits(head, learnt[:8], known)
    recipe = Recipe(folder, tmp_path / "head", None, None, 0, 0, 0, 12, 8)
    train(head, learnt, known, recipe, lambda *_: None)
    after = hits(head, learnt[:8], known)
    assert after[0] > before[0] + 0.1
    assert after == hits(head, learnt[:8], known)
    write(head, known.size, config, recipe.out, 8)
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = Bench(folder, ModelOptions(draft_model_path=str(recipe.out), num_draft_tokens=3))
    answers, _ = run_all(bench, {"a": (tuple(texts[0][:12]), 12)})
    bench.judge(tuple(texts[0][:12]), answers["a", 0])
    assert bench.engine.stats().draft_tokens > 0


def states_of(model: nn.Module, text: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    hidden, found = model.model.embed_tokens(mx.array([text])), []
    for number, layer in enumerate(model.model.layers):
        hidden = layer(hidden, "causal", None)
        if number in LAYERS:
            found.append(hidden)
    return np.array(mx.concatenate(found, axis=-1)[0].astype(mx.float16))
