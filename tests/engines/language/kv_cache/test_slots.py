"""Handles of slots stay good whatever is moved, and the table of slots has one writer."""

import ast
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines import language
from pippin.engines.language.kv_cache import groups as slot_group
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape, CacheGroups
from pippin.engines.language.kv_cache.kinds.base import Slot, SlotRequest, SlotTable, length_class
from pippin.engines.language.kv_cache.layout import CacheLayout, computed_prompt
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import TinyModels

PLENTY = 1 << 30


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "lfm2"])
def model(request: pytest.FixtureRequest, tiny_models: TinyModels) -> nn.Module:
    return Bench(tiny_models(request.param), ModelOptions()).model


@pytest.fixture
def groups(model: nn.Module) -> CacheGroups:
    layout = CacheLayout.learn(model, computed_prompt(model, (1, 2)))
    shape = BatchShape(layout=layout, slack=4)
    return CacheGroups(layout, lambda: BatchedGroup(model, shape))


def joined(groups: CacheGroups, model: nn.Module, length: int, limit: int = PLENTY) -> Slot:
    slot = groups.reserve(SlotRequest(length=length, growth=300, length_class=0), limit)
    slot.group.join(slot, computed_prompt(model, range(1, length + 1)), shift=0)
    return slot


def follows(slot: Slot, model: nn.Module, tokens: list[int]) -> bool:
    """Whether the sequence goes on as the model alone does after `tokens`."""
    group = slot.group
    logits = group.forward(mx.array([[7]] * (group.high - group.low)))[slot.index - group.low]
    cache = computed_prompt(model, range(1, tokens[0] + 1))
    for token in tokens[1:]:
        model(mx.array([[token]]), cache=cache)
    return bool(mx.allclose(logits, model(mx.array([[7]]), cache=cache)[0], atol=1e-3))


def test_a_sequence_that_is_moved_into_a_hole_goes_on(
    model: nn.Module, groups: CacheGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_group, "SPARSE_STEPS", 0)
    first, second, third = (joined(groups, model, length) for length in (6, 9, 12))
    groups.leave([second])
    groups.compact()
    assert (first.index, third.index) == (0, 1)
    assert (third.group.low, third.group.high) == (0, 2)
    assert follows(third, model, [12])


def test_a_sequence_that_grows_into_another_class_goes_over_and_on(
    model: nn.Module, groups: CacheGroups
) -> None:
    stays, goes = joined(groups, model, 6), joined(groups, model, 9)
    before = goes.group
    before.forward(mx.array([[5], [5]]))
    groups.promote(goes, 1, growth=300)
    assert groups.fit(PLENTY)
    assert goes.group is not before
    assert stays.group is before
    assert (stays.length, goes.length) == (7, 10)
    assert follows(goes, model, [9, 5])
    assert follows(stays, model, [6, 5])


def test_short_memory_makes_nothing_to_spare(model: nn.Module, groups: CacheGroups) -> None:
    joined(groups, model, 6)
    joined(groups, model, 6)
    spare = groups.bytes
    groups.fit(0)
    packed = groups.bytes
    assert packed < spare
    joined(groups, model, 6, limit=packed)
    assert groups.bytes == pytest.approx(packed * 3 / 2)


def test_a_group_that_nobody_is_in_is_gone(model: nn.Module, groups: CacheGroups) -> None:
    slot = joined(groups, model, 6)
    waiting = groups.reserve(SlotRequest(length=4, growth=4, length_class=length_class(1 << 20)), PLENTY)
    groups.leave([slot, waiting])
    assert groups.bytes == 0
    assert not groups._groups


def test_only_the_table_of_slots_writes_its_fields() -> None:
    fields = set(vars(SlotTable()))
    folder = Path(language.__file__).parent
    strangers = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                while isinstance(target, ast.Subscript):
                    target = target.value
                owner = ast.unparse(target.value) if isinstance(target, ast.Attribute) else ""
                if owner.rpartition(".")[2].lstrip("_") in ("table", "slots") and target.attr in fields:
                    strangers.append(f"{path.name}:{node.lineno}")
    assert not strangers
