"""Whatever happens around a request, the kernels for CPUs give it the answer that MLX gives to it alone."""

from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_adapters, load_model

from pippin.engines.cpu.kernels import why_missing
from tests.engines.language.reference import Reference
from tests.engines.language.schedule_run import Subject
from tests.engines.language.schedules import COMES_BACK, CROWDED, DRAFTED, GREW, KNOWN, LOOKED_BACK
from tests.engines.language.step.test_schedules import (
    ADAPTABLE,
    ALONE,
    QUANTISABLE,
    adapter,
    happened,
    play,
    play_many,
)
from tests.engines.language.tiny_heads import eagle3_head, prediction_head
from tests.engines.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

ON_A_CPU: dict[str, Any] = {"overlaps": False}
ARCHITECTURES = ("llama", "qwen3", "gemma3_text", "qwen3_moe", "gpt_oss")
QUICK = ("qwen3",)
FUSED = ("llama", "qwen3")
"""Whose draft head is one call of the kernels; for the others it is one of single operations."""
SCHEDULES = 1  # of each architecture, beside those in which everything happens


def traits_of(architecture: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"proposals": source} for source in (None, "prompt_lookup", "draft", "head", "known")
    ]
    if architecture in ADAPTABLE:
        found += [{"adapted": True}, {"adapted": True, "proposals": "prompt_lookup"}]
    if architecture in QUANTISABLE:
        found += [{"kv_bits": bits, **ALONE} for bits in (4, 8)] + [{"kv_bits": 8}]
    return [{**traits, **ON_A_CPU} for traits in found]


def subject_of(root: Path, architecture: str) -> Subject:
    changes = {"num_hidden_layers": 4} if architecture in FUSED else {}
    folder = tiny_model(architecture, root / architecture, head_dim=32, **changes)
    draft = tiny_model("llama", root / "draft")
    head = (eagle3_head if architecture in FUSED else prediction_head)(root / "head")
    named = (
        {each: str(adapter(folder, root, each)) for each in ("one", "two")}
        if architecture in ADAPTABLE
        else {}
    )
    found = Subject(folder, draft=draft, head=head, adapters=named, kernels=True)
    for each, path in named.items():
        model, _ = load_model(folder)
        model = load_adapters(model, path)
        model.eval()
        found.references[each] = Reference(model, found.tokenizer)
    return found


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in ARCHITECTURES],
)
def test_a_schedule_does_not_change_the_answers(tmp_path: Path, architecture: str) -> None:
    subject = subject_of(tmp_path, architecture)
    assert type(subject.model).__name__ == "KernelDecoder"
    for schedule in (COMES_BACK, CROWDED, DRAFTED, GREW, KNOWN, LOOKED_BACK):
        play(subject, schedule)
    happened(subject.tally, proposals=True)
    play_many(subject, traits_of(architecture), SCHEDULES, "day")
