"""What a step costs: the operations that each layer queues, for sequences of one length, of two, and of more.

A CPU takes several operations for a norm, a rotation and attention, where a GPU takes one for each.
"""

import io
import re
from collections import Counter
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from tests.engines.language.bench import PLAN, Bench
from tests.engines.tiny_models import TinyModels

VIEWS = {
    "Broadcast",
    "ExpandDims",
    "Flatten",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unflatten",
}
"""Operations for which a GPU computes nothing."""


def operations_of_a_pass(bench: Bench, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many operations a pass of sequences of these lengths queues."""
    engine = bench.new_engine(bench.plan)
    for row, length in enumerate(lengths):
        engine.submit(bench.job(f"r{row}", tuple(range(1, length + 1)), 30, ignore_eos=True))
    while len(engine.batch.running) < len(lengths):
        engine.step()
    seen: list[str] = []
    own = mx.async_eval

    def watched(*arrays: Any) -> None:
        written = io.StringIO()
        mx.export_to_dot(written, *arrays)
        seen.append(written.getvalue())
        own(*arrays)

    monkeypatch.setattr(mx, "async_eval", watched)
    engine.step()
    monkeypatch.undo()
    engine.close()
    found = Counter(re.findall(r'label ="(\w+)"', seen[0]))
    return sum(count for name, count in found.items() if name not in VIEWS)


@pytest.mark.parametrize(
    ("architecture", "lengths", "most"),
    [
        ("llama", (9,), 66),
        ("llama", (9, 9), 66),
        ("llama", (9, 12), 69),
        ("llama", (9, 10, 11, 12, 13), 71),
        ("qwen3_moe", (9,), 93),
    ],
)
def test_a_layer_queues_no_more_operations(
    architecture: str,
    lengths: tuple[int, ...],
    most: int,
    tiny_models: TinyModels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mx.disable_compile()  # as others of this process may have; a GPU computes two operations of an activation as one
    plan = msgspec.structs.replace(PLAN, overlaps=False)
    counts = []
    for layers in (2, 4):
        folder = tiny_models(architecture, num_hidden_layers=layers)
        bench = Bench(folder, ModelOptions(prefix_cache=False), plan)
        counts.append(operations_of_a_pass(bench, lengths, monkeypatch))
    assert (counts[1] - counts[0]) / 2 <= most
