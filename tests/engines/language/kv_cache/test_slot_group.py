"""Sequences in slots: what is computed in them, who moves, and whose arrays they lie in."""

import importlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import KVCache

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.functions import writable_memory
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot, SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of, computed_prompt
from pippin.engines.language.kv_cache.solo_group import copied
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import tiny_model

SLACK = 4


def model_of(architecture: str, folder: Path) -> nn.Module:
    return Bench(tiny_model(architecture, folder / architecture), ModelOptions()).model


def group_of(model: nn.Module, **shape: Any) -> BatchedGroup:
    layout = CacheLayout.learn(model, computed_prompt(model, (1, 2)))
    return BatchedGroup(model, BatchShape(layout=layout, slack=SLACK, **shape))


def filled(model: nn.Module, tokens: int) -> PromptCache:
    cache = CacheLayout.learn(model, computed_prompt(model, (1, 2))).new_prompt_cache(tokens)
    mx.eval(model(prompt(tokens), cache=cache))
    return cache


def prompt(tokens: int) -> mx.array:
    return mx.arange(1, tokens + 1)[None]


def reserved(group: BatchedGroup, tokens: int, growth: int = 30) -> Slot:
    request = SlotRequest(length=tokens, growth=growth, length_class=0)
    return group.reserve(request)


def joined(group: BatchedGroup, model: nn.Module, tokens: int, growth: int = 30) -> Slot:
    """A sequence whose prompt was computed beside its slot."""
    slot = reserved(group, tokens, growth)
    group.join(slot, filled(model, tokens), shift=0)
    return slot


def indexes(slots: list[Slot]) -> list[int]:
    return [slot.index for slot in slots]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "lfm2"])
@pytest.mark.parametrize("inside", [True, False], ids=["in a hole", "behind the others"])
def test_a_prompt_in_its_slot_is_computed_while_others_decode(
    tmp_path: Path, architecture: str, inside: bool
) -> None:
    """Steps compute a slot between others in passing, and must not write over what is there."""
    model = model_of(architecture, tmp_path)
    group, beside = group_of(model, prompts_in_slots=True), group_of(model)
    slots = [joined(group, model, length) for length in (6, 9, 12)]
    others = [joined(beside, model, length) for length in (6, 9, 12)]
    if inside:
        for each, left in ((group, slots), (beside, others)):
            each.leave(left.pop(1))
    slot = reserved(group, 20)
    assert (slot.index in range(group.low, group.high)) == inside
    cache = group.prompt_cache(slot)
    for start, stop in ((0, 7), (7, 8), (8, 20)):
        model(prompt(20)[:, start:stop], cache=cache)
        stepped = [each.forward(mx.array([[5]] * (each.high - each.low))) for each in (group, beside)]
        assert mx.allclose(*(logits[mx.array(indexes(slots))] for logits in stepped), atol=1e-4)
    group.join(slot, cache, shift=0)
    slots.append(slot)
    others.append(joined(beside, model, 20))
    assert indexes(slots) == indexes(others)
    tokens = mx.array([[7]] * (group.high - group.low))
    assert mx.allclose(group.forward(tokens), beside.forward(tokens), atol=1e-4)
    assert group.bytes == beside.bytes


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "lfm2"])
def test_a_reserved_slot_stays_while_the_others_go_and_slots_are_packed(
    tmp_path: Path, architecture: str
) -> None:
    model = model_of(architecture, tmp_path)
    group = group_of(model, prompts_in_slots=True)
    first, second = (joined(group, model, length, 300) for length in (6, 9))
    slot = reserved(group, 20, 300)
    cache = group.prompt_cache(slot)
    model(prompt(20)[:, :9], cache=cache)
    group.forward(mx.array([[5], [6]]))
    group.leave(first)
    before = group.bytes
    assert (second.index, slot.index) == (1, 2)
    group.pack()
    assert (second.index, slot.index) == (0, 1)
    assert group.bytes < before / 2
    model(prompt(20)[:, 9:], cache=cache)
    group.forward(mx.array([[7]]))
    group.leave(second)
    assert (group.low, group.high, group.empty) == (0, 0, False)
    group.join(slot, cache, shift=0)
    logits = model(mx.array([[7]]), cache=filled(model, 20))
    assert mx.allclose(group.forward(mx.array([[7]])), logits, atol=1e-4)
    group.leave(slot)
    assert group.empty
    assert group.bytes == 0


def test_a_sequence_that_will_not_come_gives_its_slot_up(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    group = group_of(model, prompts_in_slots=True)
    running, first = joined(group, model, 6), reserved(group, 20)
    index = first.index
    group.leave(first)
    second = reserved(group, 20)
    assert second.index == index
    group.leave(running)
    assert not group.empty
    group.leave(second)
    assert group.empty
    assert group.bytes == 0


def test_prompts_of_sequences_in_few_bits_are_computed_beside_their_slots(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama", head_dim=32)
    bench = Bench(folder, ModelOptions(kv_bits=8, kv_group_size=32))
    assert not bench.engine.scheduler.limits.prompts_in_slots
    layout = CacheLayout.learn(bench.model, computed_prompt(bench.model, (1, 2)))
    assert layout.in_slots
    assert not layout.quantized(8, 8, 32).in_slots


class Eager:
    """A model that has part of its work done while its graph is built."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._model(tokens, cache=cache)
        writable_memory(logits)
        return logits


@pytest.mark.float32
def test_what_is_computed_while_a_step_is_built_copies_no_slots(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    group = group_of(model)
    slots = [joined(group, model, 20 + place, 2000) for place in range(2)]
    mx.eval(group.forward(mx.array([[3], [4]])))
    group.model = Eager(model)  # type: ignore[assignment]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    group.forward(mx.array([[5], [6]]))
    assert mx.get_peak_memory() - before < group.bytes / 4
    assert [slot.length for slot in slots] == [22, 23]


@pytest.mark.parametrize("library", ["mlx_lm", "mlx_vlm"])
def test_a_copy_of_a_cache_has_what_is_no_array_and_goes_on_by_itself(library: str) -> None:
    made = importlib.import_module(f"{library}.models.cache").ChunkedKVCache(8)
    tokens = mx.arange(5.0).reshape(1, 1, 5, 1)
    made.update_and_fetch(tokens, tokens)
    [found] = copied([made])
    assert (found.chunk_size, found.offset, found.start_position) == (8, 5, 0)
    found.update_and_fetch(tokens[:, :, :2], tokens[:, :, :2])
    assert (found.offset, made.offset) == (7, 5)
    assert made.keys[0, 0, :5, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.keys[0, 0, :7, 0].tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_a_layer_that_text_does_not_reach_takes_nothing_and_is_not_batched() -> None:
    """Cross-attention writes into its cache once there is a picture."""

    class Model:
        layers = (None,)

    layout = CacheLayout.learn(Model(), [KVCache()])  # type: ignore[arg-type]
    assert not layout.batches
    assert layout.prompt_bytes(100) == 0
    assert arrays_of([KVCache()]) == []
