"""Sound in prompts of families that compute whole prompts: answers equal those of mlx-vlm's own generate."""

from pathlib import Path

import pytest

from pippin.core.conversation import Audio, Inline
from pippin.engines import sound
from tests.engines.language.vision.any_family import shrink, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench
from tests.engines.speech.recordings import wav

HEARD = (wav(0.5, 1), wav(1.3, 2))
QUICK = "phi4mm"


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name == QUICK else pytest.mark.long)
        for name in ("phi4mm", "qwen3_omni_moe")
    ],
)
def test_a_recording_is_answered_as_by_mlx_vlm(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(FAMILIES[family], monkeypatch)
    bench = VisionBench(write(family, FAMILIES[family], tmp_path / family))
    assert bench.preparer.info.capabilities.audio
    jobs = [bench.job(f"heard {n}", Audio(Inline(data)), "What?") for n, data in enumerate(HEARD)]
    # One after the other in one engine, with a picture and a text between them: nothing is left for the next.
    between = [bench.job("seen", picture(60, 28, 1), "What?"), bench.job("text", "No sound.")]
    found, _ = bench.run(jobs[0], *between, jobs[1])
    decoded = [sound.decode(data, 16000, param="sound") for data in HEARD]
    expected = [bench.judged("What?", [], sound=each) for each in decoded]
    assert [found["heard 0"], found["heard 1"]] == expected
    assert expected[0] != expected[1]
    assert found["seen"] == bench.judged("What?", [picture(60, 28, 1)])
    assert found["text"] == bench.judged("No sound.", [])
