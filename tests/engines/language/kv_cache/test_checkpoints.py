"""Whatever steps come between a checkpoint and its restoration, sequences go on as if there had been none."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import mlx.core as mx
import mlx.nn as nn
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.base import Slot, SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, computed_prompt
from tests.engines.language.bench import Bench
from tests.engines.language.kv_cache.test_glm5_next import glm5_next
from tests.engines.language.kv_cache.test_pooling import V4
from tests.engines.language.kv_cache.test_qwen4_exp import qwen4_exp
from tests.engines.language.vision.any_family import Family, write
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, TinyModels

SLACK = 7
ROUNDS = 3
OF_MLX_VLM: dict[str, Callable[[], Family]] = {
    "deepseek_v4": lambda: V4,
    "glm5_next": glm5_next,
    "qwen4_exp": qwen4_exp,
}
"""With kinds of cache that no architecture of mlx-lm has."""


BY_DAY = (*ARCHITECTURES, *ODD_ONES, "deepseek_v4")
AT_NIGHT = [pytest.param(name, marks=pytest.mark.long) for name in OF_MLX_VLM if name not in BY_DAY]


@pytest.fixture(scope="module", params=[*BY_DAY, *AT_NIGHT])
def model(
    request: pytest.FixtureRequest, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> nn.Module:
    name: str = request.param
    family = OF_MLX_VLM.get(name)
    root: Path = tmp_path_factory.mktemp("family")
    folder = tiny_models(name) if family is None else write(name, family(), root / name)
    return Bench(folder, ModelOptions()).model


@pytest.fixture(autouse=True)
def small_capacities(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group grows several times, also between a checkpoint and its restoration."""
    monkeypatch.setattr(sizes, "CAPACITY_STEP", 8)


class Play:
    """Random steps of sequences in a group, between which others are taken that are forgotten again, or not taken."""

    def __init__(self, model: nn.Module, seed: int, *, detours: bool) -> None:
        self._model = model
        self._layout = CacheLayout.learn(model, computed_prompt(model, (1, 2)))
        self._layout.tell_calls()
        self._draw = Random(seed)
        self.aside = Random(seed)
        self._detours = detours
        self.group = BatchedGroup(model, BatchShape(layout=self._layout, slack=SLACK))
        self.slots: list[Slot] = []

    def run(self) -> list[mx.array]:
        """What the steps give [slots, 1, vocabulary] that are not forgotten."""
        found: list[mx.array] = []
        self._join()
        for _ in range(ROUNDS):
            self._join()
            self._read(self._draw)
            if self._detours:
                self._go_astray()
            found += [self.forward(self._draw, 1), self.forward(self._draw, 1)]
            if len(self.slots) > 2:
                self.group.leave(self.slots.pop(self._draw.randrange(len(self.slots))))
            self.group.compact()
        return found

    def _join(self) -> None:
        length = self._draw.choice((self._draw.randint(1, 6), self._draw.randint(7, 40)))
        slot = self.group.reserve(SlotRequest(length=length, growth=4, length_class=0))
        self.group.join(slot, computed_prompt(self._model, range(1, length + 1)), shift=0)
        self.slots.append(slot)

    def forward(self, draw: Random, count: int) -> mx.array:
        rows = range(self.group.high - self.group.low)
        return self.group.forward(mx.array([[draw.randrange(250) for _ in range(count)] for _ in rows]))

    def _read(self, draw: Random) -> int:
        """A step of several tokens, of which each sequence keeps some; gives how many it had."""
        count = draw.randint(1, 4)
        self.forward(draw, count)
        self.group.rewind({slot.index: draw.randint(0, count) for slot in self.slots})
        return count

    def _go_astray(self) -> None:
        lengths = [slot.length for slot in self.slots]
        for _ in range(self.aside.randint(1, 2)):
            with self.group.forgetting():
                room = SLACK
                while room >= 4 and self.aside.random() < 0.9:
                    room -= self._read(self.aside)
                at_once = room if self.aside.random() < 0.2 else 1
                for _ in range(room // max(at_once, 1)):
                    self.forward(self.aside, at_once)
                if self.aside.random() < 0.5:
                    mx.eval([cache.arrays() for cache in self.group.caches])
            assert [slot.length for slot in self.slots] == lengths


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_sequences_go_on_from_where_they_stood(model: nn.Module, seed: int) -> None:
    plain, restored = (Play(model, seed, detours=detours).run() for detours in (False, True))
    for expected, found in zip(plain, restored, strict=True):
        assert mx.allclose(found, expected, atol=1e-4)
