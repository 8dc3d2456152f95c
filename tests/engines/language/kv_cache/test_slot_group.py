"""Rows in arenas: what is seen of them between two steps, and whose arrays they lie in."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.in_place import writable_memory
from pippin.engines.language.kv_cache.attention import BatchShape
from pippin.engines.language.kv_cache.kinds import RowCache, arrays_of, measure_rows, new_row_cache
from pippin.engines.language.kv_cache.probe import probe_row
from pippin.engines.language.kv_cache.slot_group import ArenaGroup
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import tiny_model

SLACK = 4


def model_of(architecture: str, folder: Path) -> nn.Module:
    return Bench(tiny_model(architecture, folder / architecture), ModelOptions()).model


def group_of(model: nn.Module, **shape: Any) -> ArenaGroup:
    return ArenaGroup(model, BatchShape(slack=SLACK, **shape), measure_rows(probe_row(model, 2)))


def numbers(cache: RowCache) -> list[Any]:
    return [array.tolist() for array in arrays_of(cache)]


def filled(model: nn.Module, tokens: int) -> RowCache:
    cache = new_row_cache(model, tokens)
    mx.eval(model(prompt(tokens), cache=cache))
    return cache


def prompt(tokens: int) -> mx.array:
    return mx.arange(1, tokens + 1)[None]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "lfm2"])
@pytest.mark.parametrize("inside", [True, False], ids=["in a hole", "behind the others"])
def test_a_prompt_in_its_slot_is_computed_while_others_decode(
    tmp_path: Path, architecture: str, inside: bool
) -> None:
    """Steps compute a slot between others in passing, and must not write over what is there."""
    model = model_of(architecture, tmp_path)
    group, beside = group_of(model, prompts_in_slots=True), group_of(model)
    slots = [group.join(filled(model, length), length, 30) for length in (6, 9, 12)]
    others = [beside.join(filled(model, length), length, 30) for length in (6, 9, 12)]
    if inside:
        for each, left in ((group, slots), (beside, others)):
            each.leave(left.pop(1))
    reservation = group.reserve(20, 30)
    assert reservation is not None
    assert (reservation.slot in range(group.low, group.high)) == inside
    cache = filled(model, 20)
    for start, stop in ((0, 7), (7, 8), (8, 20)):
        model(prompt(20)[:, start:stop], cache=reservation.cache)
        stepped = [each.forward(mx.array([[5]] * (each.high - each.low))) for each in (group, beside)]
        assert mx.allclose(*(logits[mx.array(slots)] for logits in stepped), atol=1e-4)
    slots.append(group.join(reservation.cache, 20, 30, reservation=reservation))
    others.append(beside.join(cache, 20, 30))
    assert slots == others
    tokens = mx.array([[7]] * (group.high - group.low))
    assert mx.allclose(group.forward(tokens), beside.forward(tokens), atol=1e-4)
    assert group.bytes == beside.bytes


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "lfm2"])
def test_a_reservation_stays_while_the_others_go_and_slots_are_packed(
    tmp_path: Path, architecture: str
) -> None:
    model = model_of(architecture, tmp_path)
    group = group_of(model, prompts_in_slots=True)
    slots = [group.join(filled(model, length), length, 300) for length in (6, 9)]
    reservation = group.reserve(20, 300)
    assert reservation is not None
    model(prompt(20)[:, :9], cache=reservation.cache)
    group.forward(mx.array([[5], [6]]))
    group.leave(slots[0])
    before = group.bytes
    assert reservation.slot == 2
    assert group.pack() == {1: 0, 2: 1}
    assert reservation.slot == 1
    assert group.bytes < before / 2
    model(prompt(20)[:, 9:], cache=reservation.cache)
    group.forward(mx.array([[7]]))
    group.leave(0)
    assert (group.low, group.high, group.empty) == (0, 0, False)
    slot = group.join(reservation.cache, 20, 300, reservation=reservation)
    logits = model(mx.array([[7]]), cache=filled(model, 20))
    assert mx.allclose(group.forward(mx.array([[7]])), logits, atol=1e-4)
    group.leave(slot)
    assert group.empty
    assert group.bytes == 0


def test_a_row_that_will_not_come_gives_its_slot_up(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    group = group_of(model, prompts_in_slots=True)
    group.join(filled(model, 6), 6, 30)
    first = group.reserve(20, 30)
    assert first is not None
    group.release(first)
    second = group.reserve(20, 30)
    assert second is not None
    assert second.slot == first.slot
    group.leave(0)
    assert not group.empty
    group.release(second)
    assert group.empty
    assert group.bytes == 0


def test_rows_in_few_bits_are_computed_beside_their_slots(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama", head_dim=32)
    engine = Bench(folder, ModelOptions(kv_bits=8, kv_group_size=32)).engine
    assert not engine._scheduler.limits.prompts_in_slots
    assert group_of(Bench(folder, ModelOptions()).model, kv_bits=8).reserve(20, 30) is None


class Eager:
    """A model that has part of its work done while its graph is built."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._model(tokens, cache=cache)
        writable_memory(logits)
        return logits


def test_what_is_computed_while_a_step_is_built_copies_no_arena(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    group = group_of(model)
    slots = [group.join(filled(model, 20 + place), 20 + place, 2000) for place in range(2)]
    mx.eval(group.forward(mx.array([[3], [4]])))
    group._model = Eager(model)  # type: ignore[assignment]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    group.forward(mx.array([[5], [6]]))
    assert mx.get_peak_memory() - before < group.bytes / 4
    assert [group.length(slot) for slot in slots] == [22, 23]
