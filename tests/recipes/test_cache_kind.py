"""The recipe for a kind of KV cache, carried out: one file, and a model's sequences run in one batch, with hits.

The throw-away kind serves `ConcatenateKVCache`, which Pippin does not: each sequence has arrays of its own, which grow
by concatenation.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlx_lm.models.cache import ConcatenateKVCache

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache import kinds
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.layout import find_kinds
from pippin.engines.language.kv_cache.solo_group import SoloGroup
from tests.engines.language.bench import Bench, run_all
from tests.engines.tiny_models import tiny_model

KIND = '''
"""Keys and values of each sequence in arrays of its own."""

from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import ConcatenateKVCache

from pippin.engines.language.kv_cache.kinds.base import BatchedCache, CacheKind, TokenArray


@dataclass(frozen=True, kw_only=True)
class OwnArraysKind(CacheKind):
    serves = (ConcatenateKVCache,)

    keys: TokenArray
    values: TokenArray

    @classmethod
    def of(cls, cache):
        return cls(keys=TokenArray.of(cache.keys), values=TokenArray.of(cache.values))

    def slot_bytes(self, capacity, slack):
        return self.prompt_bytes(capacity, 0)

    def prompt_bytes(self, capacity, chunk):
        return (self.keys.token_bytes + self.values.token_bytes) * capacity

    def batched(self, slots):
        return BatchedOwnArrays(slots)

    @property
    def token_arrays(self):
        return self.keys, self.values

    def cut(self, cache):
        return [cache.keys, cache.values]

    def fill(self, cache, arrays):
        cache.update_and_fetch(*arrays)


KIND = OwnArraysKind


class BatchedOwnArrays(BatchedCache):
    def __init__(self, slots):
        super().__init__(slots)
        self.pairs = {}
        self._step = 0

    @property
    def offset(self):
        return self.slots.offset_after if self._step == self.slots.step else self.slots.offset_before

    def update_and_fetch(self, keys, values):
        slots, self._step = self.slots, self.slots.step
        for row, index in enumerate(range(slots.low, slots.high)):
            new = keys[row : row + 1], values[row : row + 1]
            stop = slots.lengths[index]
            if stop:
                new = tuple(mx.concatenate([a[:, :, :stop], b], axis=2) for a, b in zip(self.pairs[index], new))
            self.pairs[index] = new
        reach = slots.longest + slots.count
        pairs = [self.pairs[index] for index in range(slots.low, slots.high)]
        return tuple(
            mx.concatenate([mx.pad(each, [(0, 0), (0, 0), (0, reach - each.shape[2]), (0, 0)]) for each in all_rows])
            for all_rows in zip(*pairs)
        )

    def make_mask(self, N, return_array=False, window_size=None):
        return (mx.arange(self.slots.longest + N) <= self.slots.positions()[..., None])[:, None]

    def store(self, slot, cache):
        self.pairs[slot] = cache.keys, cache.values

    def adopt(self, slot, other, theirs):
        self.pairs[slot] = other.pairs[theirs]

    def view(self, slot, stop):
        cache = ConcatenateKVCache()
        cache.update_and_fetch(*(array[:, :, :stop] for array in self.pairs[slot]))
        return cache

    def pack(self, kept, capacity):
        self.pairs = {new: self.pairs[old] for new, old in enumerate(kept) if old in self.pairs}

    def arrays(self):
        return [array for pair in self.pairs.values() for array in pair]
'''

PROMPT = tuple(place * 11 % 250 for place in range(60))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A tiny model whose layers have a cache that Pippin has no file for."""
    found = Bench(tiny_model("llama", tmp_path / "llama"), ModelOptions(cache_block_tokens=8))
    layers = len(found.model.layers)
    found.model.make_cache = lambda: [ConcatenateKVCache() for _ in range(layers)]
    return found


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recipe, followed: a file in the folder of kinds."""
    folder = tmp_path / "kinds"
    folder.mkdir()
    (folder / "own_arrays.py").write_text(KIND)
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(folder)])
    find_kinds.cache_clear()
    yield
    find_kinds.cache_clear()


def groups_while_running(bench: Bench, count: int) -> set[type]:
    """The types of groups in which so many sequences run at once, each judged by the model alone."""
    engine = bench.engine = bench.new_engine(bench.plan)
    found: set[type] = set()
    forward = engine.batch.forward

    def noting(**how: bool) -> None:
        forward(**how)
        if len(engine.batch.running) == count:
            found.update(type(row.slot.group) for row in engine.batch.running)

    engine.batch.forward = noting  # type: ignore[method-assign]
    prompts = {f"r{index}": (PROMPT[: 20 + 7 * index], 12 + index) for index in range(count)}
    answers, _ = run_all(bench, prompts)
    for name, (prompt, _tokens) in prompts.items():
        bench.judge(prompt, answers[name, 0])
    return found


def test_without_the_file_sequences_run_one_at_a_time(bench: Bench) -> None:
    assert groups_while_running(bench, 3) == {SoloGroup}
    assert not bench.engine.prefixes.keeps


@pytest.mark.usefixtures("recipe")
def test_with_the_file_they_run_in_one_batch_and_start_from_what_was_computed(bench: Bench) -> None:
    assert groups_while_running(bench, 3) == {BatchedGroup}
    answers, ends = run_all(bench, {"again": ((*PROMPT[:34], 1, 2, 3), 8)})
    assert ends["again", 0].usage.cached_tokens == 32
    bench.judge((*PROMPT[:34], 1, 2, 3), answers["again", 0])


@pytest.mark.usefixtures("recipe")
def test_proposals_are_checked_and_taken_back(bench: Bench) -> None:
    bench.options = ModelOptions(cache_block_tokens=8, prompt_lookup=True, num_draft_tokens=4)
    bench.engine = bench.new_engine(bench.plan)
    prompt = PROMPT[:12] * 4
    answers, ends = run_all(bench, {"a": (prompt, 40)})
    assert ends["a", 0].usage.draft_tokens
    bench.judge(prompt, answers["a", 0])
