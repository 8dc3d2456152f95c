"""Rows in arenas: what is seen of them between two steps, and whose arrays they lie in."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from tests.engines.bench import Bench
from tests.engines.tiny_models import tiny_model

from pippin.config.model_options import ModelOptions
from pippin.engines.cpu_in_place import opened
from pippin.engines.language.arena_group import ArenaGroup
from pippin.engines.language.arenas import AttentionArena, BatchShape
from pippin.engines.language.batching import probe_row
from pippin.engines.language.row_caches import RowCache, arrays_of, measure_rows, new_row_cache
from pippin.engines.language.sizes import row_places

SLACK = 4


def model_of(architecture: str, folder: Path) -> nn.Module:
    return Bench(tiny_model(architecture, folder / architecture), ModelOptions()).model


def group_of(model: nn.Module, **shape: Any) -> ArenaGroup:
    return ArenaGroup(model, BatchShape(slack=SLACK, **shape), measure_rows(probe_row(model, 2)))


def numbers(cache: RowCache) -> list[Any]:
    return [array.tolist() for array in arrays_of(cache)]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "lfm2"])
def test_until_a_step_built_ahead_is_started_its_rows_are_seen_as_before(
    tmp_path: Path, architecture: str
) -> None:
    """Else what a row leaves to the cache when it ends would have a step computed that nobody needs."""
    model = model_of(architecture, tmp_path)
    group = group_of(model)
    first, second = (group.join(probe_row(model, length), length, 8) for length in (6, 9))

    def seen(slot: int) -> list[Any]:
        return numbers(group.view(slot, group.computed(slot)))

    group.forward(mx.array([[3], [4]]))
    before = seen(first), seen(second)
    group.forward(mx.array([[5], [6]]), ahead=True)
    assert (group.length(first), group.length(second)) == (8, 11)
    assert (group.computed(first), group.computed(second)) == (7, 10)
    assert (seen(first), seen(second)) == before
    group.leave(second)
    assert seen(first) == before[0]
    group.start()
    assert group.computed(first) == 8
    assert seen(first) != before[0]


def filled(model: nn.Module, tokens: int, places: int) -> RowCache:
    cache = new_row_cache(model, places)
    mx.eval(model(mx.arange(1, tokens + 1)[None], cache=cache))
    return cache


def taken(group: ArenaGroup, cache: RowCache) -> bool:
    arenas = [arena for arena in group._arenas if type(arena) is AttentionArena]
    pairs = zip(arenas, cache, strict=True)
    return bool(arenas) and all(arena.parts[0] is layer.keys for arena, layer in pairs)


def test_a_row_by_itself_goes_on_in_the_cache_of_its_prompt(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    places = row_places(20, 30, SLACK)
    alone, cache = group_of(model), filled(model, 20, places)
    slot = alone.join(cache, 20, 30)
    assert taken(alone, cache)
    copied = group_of(model)
    copied.join(probe_row(model, 20), 20, 30)  # whose places are others
    token = mx.array([[7]])
    assert mx.allclose(alone.forward(token), copied.forward(token), atol=1e-4)
    assert alone.bytes == copied.bytes
    assert alone.length(slot) == 21


@pytest.mark.parametrize(
    ("first", "coming", "shape"),
    [(True, 0, {}), (False, 3, {}), (False, 0, {"kv_bits": 8, "kv_group_size": 32})],
)
def test_a_row_beside_others_or_in_few_bits_is_copied(
    tmp_path: Path, first: bool, coming: int, shape: dict[str, int]
) -> None:
    folder = tiny_model("llama", tmp_path / "llama", head_dim=32)
    model = Bench(folder, ModelOptions()).model
    group = group_of(model, **shape)
    if first:
        group.join(probe_row(model, 5), 5, 30)
    cache = filled(model, 20, row_places(20, 30, SLACK))
    kept = numbers(cache)
    group.join(cache, 20, 30, 0, coming)
    assert not taken(group, cache)
    mx.eval(group.forward(mx.array([[1]] * group.high)))
    assert numbers(cache) == kept


class Eager:
    """A model that has part of its work done while its graph is built."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._model(tokens, cache=cache)
        opened(logits)
        return logits


def test_what_is_computed_while_a_step_is_built_copies_no_arena(tmp_path: Path) -> None:
    model = model_of("llama", tmp_path)
    group = group_of(model)
    slots = [group.join(filled(model, 20 + place, 20 + place), 20 + place, 2000) for place in range(2)]
    mx.eval(group.forward(mx.array([[3], [4]])))
    group._model = Eager(model)  # type: ignore[assignment]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    group.forward(mx.array([[5], [6]]), ahead=True)
    assert mx.get_peak_memory() - before < group.bytes / 4
    assert [group.computed(slot) for slot in slots] == [22, 23]
