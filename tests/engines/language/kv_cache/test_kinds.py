"""What a kind of cache says of itself holds: its bytes, and that it goes on from what it gave away."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import SlotRequest
from pippin.engines.language.kv_cache.layout import (
    CacheLayout,
    arrays_of,
    computed_prompt,
    find_kinds,
    leaves,
    new_prompt_cache,
    regrouped,
)
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, TinyModels

SLACK = 4
LENGTH = 40  # more than the tiny models' spans


@pytest.fixture(scope="module", params=[*ARCHITECTURES, *ODD_ONES])
def model(request: pytest.FixtureRequest, tiny_models: TinyModels) -> nn.Module:
    return Bench(tiny_models(request.param), ModelOptions()).model


@pytest.fixture
def layout(model: nn.Module) -> CacheLayout:
    return CacheLayout.learn(model, computed_prompt(model, (1, 2)))


def test_slots_take_the_bytes_that_their_kinds_say(model: nn.Module, layout: CacheLayout) -> None:
    group = BatchedGroup(model, BatchShape(layout=layout, slack=SLACK))
    for length in (5, LENGTH):
        slot = group.reserve(SlotRequest(length=length, growth=8, length_class=0, following=1))
        group.join(slot, computed_prompt(model, range(1, length + 1)), shift=0)
    assert group.bytes == 2 * layout.slot_bytes(group.table.capacity, SLACK)


def test_a_prompts_own_cache_takes_no_more_than_its_kinds_say(model: nn.Module, layout: CacheLayout) -> None:
    cache = layout.new_prompt_cache(LENGTH)
    model(mx.arange(LENGTH)[None], cache=cache)
    mx.eval(arrays_of(cache))
    assert sum(array.nbytes for array in arrays_of(cache)) <= layout.prompt_bytes(LENGTH, LENGTH)


def test_a_view_of_a_slot_goes_on_as_the_sequence_does(model: nn.Module, layout: CacheLayout) -> None:
    group = BatchedGroup(model, BatchShape(layout=layout, slack=SLACK))
    slot = group.reserve(SlotRequest(length=LENGTH, growth=8, length_class=0))
    group.join(slot, computed_prompt(model, range(1, LENGTH + 1)), shift=0)
    group.forward(mx.array([[7]]))
    alone = model(mx.array([[9]]), cache=slot.view(LENGTH + 1))
    assert mx.allclose(group.forward(mx.array([[9]])), alone, atol=1e-3)


@pytest.mark.float32
@pytest.mark.parametrize("forgotten", [(0, 2, 3, 1), (3, 3, 3, 3), (0, 0, 0, 4)])
def test_each_sequence_forgets_as_many_tokens_of_a_step_as_it_is_told(
    model: nn.Module, layout: CacheLayout, forgotten: tuple[int, ...]
) -> None:
    """Also all of them; and two steps in a row, so that nothing of the first is left in the second."""
    lengths = (3, LENGTH, 9, 21)
    group = BatchedGroup(model, BatchShape(layout=layout, slack=SLACK))
    layout.tell_calls()
    texts = []
    for length in lengths:
        slot = group.reserve(SlotRequest(length=length, growth=8, length_class=0, following=1))
        group.join(slot, computed_prompt(model, range(1, length + 1)), shift=0)
        texts.append([*range(1, length + 1)])
    for step in range(2):
        tokens = [[(7 * row + 3 * place + step) % 250 for place in range(4)] for row in range(len(lengths))]
        group.forward(mx.array(tokens))
        group.rewind(dict(enumerate(forgotten)))
        for text, new, count in zip(texts, tokens, forgotten, strict=True):
            text += new[: 4 - count]
    together = group.forward(mx.array([[5]] * len(lengths)))
    for row, text in enumerate(texts):
        alone = model(mx.array([[*text, 5]]), cache=new_prompt_cache(model))[0, -1]
        assert mx.allclose(together[row, -1], alone, atol=1e-3)


def test_the_layers_of_a_model_are_of_few_kinds(layout: CacheLayout) -> None:
    """Equal where they are alike: sizes are reckoned by the kind, not by the layer."""
    assert len(set(layout.kinds)) <= 3


def test_lists_of_caches_are_taken_apart_and_put_together_again(model: nn.Module) -> None:
    caches = new_prompt_cache(model)
    assert list(map(type, regrouped(caches, leaves(caches)))) == list(map(type, caches))
    assert all(type(leaf) in find_kinds() for leaf in leaves(caches))
