"""What a Mac computes before the first client comes, who would wait for the compiler else."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pippin.core.events import Finished
from pippin.engines.device import DeviceFacts
from pippin.engines.language.loading import engine as loading
from tests.as_on_a_mac.mac import Mac
from tests.as_on_a_mac.test_wired_memory import CHAT, drive
from tests.engines.tiny_models import tiny_model


@pytest.mark.parametrize("facts", [Mac().facts, None], ids=["Mac", "CPU"])
def test_usual_draws_are_compiled_where_a_gpu_compiles(
    facts: DeviceFacts | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[mx.Dtype] = []
    own = loading.usual_draws

    def watched(tokenizer: Any, logits: mx.array) -> list[mx.array]:
        drawn.append(logits.dtype)
        return own(tokenizer, logits)

    monkeypatch.setattr(loading, "usual_draws", watched)
    if facts is not None:
        monkeypatch.setattr(loading, "find_facts", lambda: facts)
    mx.disable_compile()  # it would run a C compiler here
    limit = mx.set_memory_limit(1 << 34)
    try:
        events = drive(tiny_model("llama", tmp_path / "llama"), "language", CHAT)
    finally:
        mx.set_memory_limit(limit)
    assert isinstance(events[-1], Finished)
    assert drawn == ([] if facts is None else [mx.float32])
