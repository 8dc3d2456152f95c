"""Whatever happens around a request, the kernels for CPUs give it the answer that MLX gives to it alone."""

from pathlib import Path
from typing import Any

import pytest

from pippin.engines.cpu.kernels import why_missing
from tests.engines.language.schedule_run import Subject
from tests.engines.language.schedules import COMES_BACK, CROWDED, GREW, KNOWN, LOOKED_BACK
from tests.engines.language.step.test_schedules import happened, play, play_many
from tests.engines.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

ON_A_CPU: dict[str, Any] = {"overlaps": False}
SCHEDULES = 6  # of each architecture


def traits() -> list[dict[str, Any]]:
    proposals = (None, "prompt_lookup", "draft", "known")
    return [{**ON_A_CPU, "proposals": source} for source in proposals]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_schedule_does_not_change_the_answers(tmp_path: Path, architecture: str) -> None:
    folder = tiny_model(architecture, tmp_path / "model", head_dim=32)
    subject = Subject(folder, draft=folder, kernels=True)
    assert type(subject.model).__name__ == "KernelDecoder"
    for schedule in (COMES_BACK, CROWDED, GREW, KNOWN, LOOKED_BACK):
        play(subject, schedule)
    happened(subject.tally, proposals=True)
    play_many(subject, traits(), SCHEDULES, "day")
