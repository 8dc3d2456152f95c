"""The projection onto the vocabulary, made to compute one position of each row."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from pippin.config.options.model import ModelOptions
from pippin.engines.language.model.head import Head
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import tiny_model

TOKENS = mx.array([[1, 2, 3, 4], [5, 6, 7, 8]])


def test_only_the_wanted_positions_are_projected(tmp_path: Path) -> None:
    model = Bench(tiny_model("llama", tmp_path / "llama"), ModelOptions()).model
    whole = model(TOKENS)
    head = Head(model, whole.shape[-1])
    assert head.works
    with head.only([2, 0]):
        narrowed = model(TOKENS)
    assert narrowed.shape == (2, 1, whole.shape[-1])
    assert mx.allclose(head.last(narrowed, [2, 0]), mx.stack([whole[0, 2], whole[1, 0]]), atol=1e-4)
    assert mx.allclose(model(TOKENS), whole, atol=1e-4)


def test_a_head_takes_the_place_of_one_from_before(tmp_path: Path) -> None:
    model = Bench(tiny_model("llama", tmp_path / "llama"), ModelOptions()).model
    vocabulary = model(TOKENS).shape[-1]

    def depth() -> int:
        return max(len(type(module).__mro__) for _, module in model.named_modules())

    heads = [Head(model, vocabulary)]
    once = depth()
    heads += [Head(model, vocabulary) for _ in range(3)]
    assert depth() == once
    for head in heads:
        with head.only([1, 1]):
            assert head.last(model(TOKENS), [1, 1]).shape == (2, vocabulary)


class OneByOne(nn.Module):
    """Projects each token by itself, as models of mlx-vlm do with up to 8 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(16, 8)
        self.lm_head = nn.Linear(8, 16, bias=False)
        self.layers: list[nn.Module] = []

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        hidden = self.embed_tokens(tokens)
        return mx.concatenate(
            [self.lm_head(each) for each in mx.split(hidden, tokens.shape[1], axis=1)], axis=1
        )


def test_a_head_that_projects_tokens_one_by_one_is_never_read_past_its_end() -> None:
    model = OneByOne()
    head = Head(model, 16)
    assert not head.works
    whole = model(TOKENS)
    for places in ([3, 3], [0, 2], [0, 0]):
        with head.only(places):
            found = head.last(model(TOKENS), places)
        assert mx.array_equal(found, mx.stack([whole[0, places[0]], whole[1, places[1]]]))
