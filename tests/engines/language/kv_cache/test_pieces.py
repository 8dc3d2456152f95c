"""Attention in pieces, and slots in the order of their lengths: the same logits, of fewer keys."""

import random
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from benchmarks.padding import read_keys
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.engines.device import LAUNCH_BYTES, DeviceFacts, decide
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import Slot, SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, computed_prompt
from pippin.engines.language.kv_cache.pieces import Pieces, cheapest, price
from tests.as_on_a_mac.mac import Mac
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import TinyModels

SLACK = 4
CUDA = replace(Mac().facts, system="Linux", accelerator="cuda")


def cuts(count: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut so many."""
    for kept in range(1 << max(count - 1, 0)):
        ends = [place for place in range(1, count) if kept >> (place - 1) & 1] + [count]
        yield list(zip([0, *ends], ends, strict=False))


def test_no_other_pieces_are_cheaper() -> None:
    draw = random.Random(5)
    for _ in range(60):
        lengths = [draw.choice((0, 3, draw.randrange(40))) for _ in range(draw.randint(1, 7))]
        asked = draw.choice((0, 5, 30))
        costs = {
            sum(asked + (stop - start) * max(lengths[start:stop]) for start, stop in pieces): pieces
            for pieces in cuts(len(lengths))
        }
        cost, found = cheapest(lengths, asked)
        assert cost == min(costs)
        assert sum(asked + (stop - start) * max(lengths[start:stop]) for start, stop in found) == cost
        assert [*range(len(lengths))] == [row for start, stop in found for row in range(start, stop)]


@pytest.mark.parametrize(
    ("facts", "options", "found"),
    [
        (CUDA, ModelOptions(), LAUNCH_BYTES),
        (Mac().facts, ModelOptions(), None),
        (Mac().facts, ModelOptions(kv_bits=8), LAUNCH_BYTES),
        (Mac().facts, ModelOptions(kv_key_bits=8, kv_value_bits=4), None),
        (replace(CUDA, accelerator="cpu"), ModelOptions(kv_bits=8), None),
    ],
    ids=["CUDA", "Metal", "Metal, 8 bits", "Metal, dequantised", "CPU"],
)
def test_what_a_mask_hides_costs_on_some_devices(
    facts: DeviceFacts, options: ModelOptions, found: int | None
) -> None:
    assert decide(facts, options).launch_bytes == found


class Play:
    """Joins, leaves and steps by chance. With a price for pieces, slots are ordered now and then."""

    def __init__(self, model: nn.Module, layout: CacheLayout, launch_bytes: int | None) -> None:
        self.model = model
        self.layout = layout
        self.draw = random.Random(3)
        self.group = BatchedGroup(model, BatchShape(layout=layout, slack=SLACK, launch_bytes=launch_bytes))
        self.slots: list[Slot] = []
        self.ordered = self.cut = 0

    @property
    def cuts(self) -> list[tuple[int, int]]:
        return [] if self.group.pieces is None else self.group.pieces.cuts

    def run(self) -> Iterator[mx.array]:
        """The logits of each step [sequences, tokens, vocabulary], the first that joined first."""
        draw = self.draw
        for turn in range(15):
            while len(self.slots) < 2 or (len(self.slots) < 7 and draw.random() < 0.4):
                self.join(draw.choice((3, 9, draw.randint(1, 40))))
            if draw.random() < 0.4:
                self.group.leave(self.slots.pop(draw.randrange(len(self.slots))))
            if turn % 3 == 2 and self.cuts:
                self.group.order()
                lengths = [self.group.table.lengths[each] for each in range(self.group.low, self.group.high)]
                assert lengths == sorted(lengths)
                self.ordered += 1
            self.group.compact()
            yield self.step(1 if draw.random() < 0.7 else draw.randint(2, SLACK))

    def join(self, length: int) -> None:
        slot = self.group.reserve(SlotRequest(length=length, growth=4, length_class=0))
        self.group.join(slot, computed_prompt(self.model, range(1, length + 1)), shift=0)
        self.slots.append(slot)

    def step(self, count: int) -> mx.array:
        rows = [[0] * count for _ in range(self.group.high - self.group.low)]
        given = [[self.draw.randrange(250) for _ in range(count)] for _ in self.slots]
        for slot, tokens in zip(self.slots, given, strict=True):
            rows[slot.index - self.group.low] = tokens
        logits = self.group.forward(mx.array(rows))
        self.cut += len(self.cuts) > 1
        found = logits[mx.array([slot.index - self.group.low for slot in self.slots])]
        if count > 1:
            kept = [self.draw.randint(1, count) for _ in self.slots]
            self.group.rewind({slot.index: count - own for slot, own in zip(self.slots, kept, strict=True)})
        return found


@pytest.mark.even
@pytest.mark.parametrize(
    ("architecture", "bits"),
    [
        ("llama", 0),
        ("llama", 8),
        ("lfm2", 0),
        *(
            pytest.param(name, 0, marks=pytest.mark.long)
            for name in ("gemma3_text", "gpt_oss", "deepseek_v32")
        ),
    ],
)
def test_rows_are_right_wherever_they_lie_and_however_attention_is_cut(
    architecture: str, bits: int, tiny_models: TinyModels
) -> None:
    bench = Bench(tiny_models(architecture, **({"head_dim": 32} if bits else {})), ModelOptions())
    layout = CacheLayout.learn(bench.model, computed_prompt(bench.model, (1, 2)))
    layout.tell_calls()
    layout = layout.quantized(bits, bits, 32) if bits else layout
    plain, tried = (Play(bench.model, layout, launch_bytes) for launch_bytes in (None, 1))
    for expected, found in zip(plain.run(), tried.run(), strict=True):
        assert mx.allclose(found, expected, atol=1e-4 if found.dtype == mx.float32 else 0.05)
    assert plain.cut == plain.ordered == 0
    assert min(tried.cut, tried.ordered) > 3


def keys_given(model: nn.Module, launch_bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """The keys that attention is given in a step of three sequences of 8, 8 and 30 tokens."""
    layout = CacheLayout.learn(model, computed_prompt(model, (1, 2)))
    play = Play(model, layout, launch_bytes)
    for length in (8, 8, 30):
        play.join(length)
    given = []
    own = mx.fast.scaled_dot_product_attention

    def counted(queries: mx.array, keys: mx.array, values: mx.array, **named: Any) -> mx.array:
        given.append(keys.shape[0] * keys.shape[2])
        # A piece of one length is given no mask: the fused kernels of CUDA take none.
        assert named["mask"] is None or (len(given) == 1 and launch_bytes is None)
        return own(queries, keys, values, **named)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", counted)
    mx.eval(play.step(1))
    monkeypatch.undo()
    return sum(given)


def test_attention_is_given_the_keys_of_each_piece_alone(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Bench(tiny_models("llama", num_hidden_layers=1), ModelOptions()).model
    assert keys_given(model, None, monkeypatch) == 3 * 31
    assert keys_given(model, 0, monkeypatch) == 9 + 9 + 31


def test_a_pieces_price_is_in_keys_of_a_layer(tiny_models: TinyModels) -> None:
    model = Bench(tiny_models("llama", head_dim=32), ModelOptions()).model
    kinds = CacheLayout.learn(model, computed_prompt(model, (1, 2))).kinds
    quantised = [kind.quantized(8, 8, 32) for kind in kinds]
    plain, packed = price(kinds, 1 << 20), price(quantised, 1 << 20)
    assert plain is not None
    assert packed is not None
    assert plain < packed < 4 * plain
    assert price([], 1) is None


def test_less_than_half_of_the_padding_is_left_where_keys_are_large() -> None:
    """A layer of 8 heads of 128 numbers, and 32 clients who come and go; ordering is counted as reading."""
    read = read_keys(32, 250, 8)
    padding = [keys - read.needed for keys in (read.whole, read.in_pieces + read.copied)]
    assert padding[0] > read.needed
    assert padding[1] < padding[0] / 2


def test_the_libraries_attention_is_their_own_again_after_a_step_that_fails() -> None:
    own = mx.fast.scaled_dot_product_attention

    class Failing(nn.Module):  # type: ignore[misc] # mlx has no types
        def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
            assert mx.fast.scaled_dot_product_attention is not own
            raise ValueError("no")

        def make_cache(self) -> list[Any]:
            return []

    group = BatchedGroup(Failing(), BatchShape(layout=CacheLayout(Failing(), []), launch_bytes=0))
    group.pieces = Pieces(0)
    group.table.grow(2, 256)
    group.table.fill(0, 5)
    group.table.cover(0, 2)
    with pytest.raises(ValueError, match="no"):
        group.forward(mx.array([[1], [1]]))
    assert mx.fast.scaled_dot_product_attention is own
