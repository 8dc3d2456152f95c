"""Pictures that a model's processor takes and the model does not: their request is refused, and nobody else's."""

import io
from pathlib import Path

import pytest
from PIL import Image as Pictures

from pippin.core.events import Event, Failed, Finished
from pippin.engines.language.job import LanguageJob
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench


def plain(width: int, height: int) -> bytes:
    written = io.BytesIO()
    Pictures.new("RGB", (width, height), "red").save(written, "PNG")
    return written.getvalue()


def endings(bench: VisionBench, *jobs: LanguageJob) -> dict[str, Event]:
    engine = bench.new_engine()
    for job in jobs:
        engine.submit(job)
    found: dict[str, Event] = {}
    while engine.busy:
        found |= {name: event for name, event in engine.step() if isinstance(event, Failed | Finished)}
    return found


@pytest.mark.parametrize(("family", "size"), [("lfm2_vl", (20_000, 1)), ("kimi_vl", (1, 1))])
def test_a_picture_that_the_model_cannot_take_ends_its_own_request(
    family: str, size: tuple[int, int], tmp_path: Path
) -> None:
    bench = VisionBench(write(family, FAMILIES[family], tmp_path / family))
    good = bench.job("good", picture(60, 28, 1), "What?")
    ends = endings(
        bench,
        bench.job("text", "Hello"),
        bench.job("bad", plain(*size), "What?"),
        good,
        bench.job("more", "Hi"),
    )
    failed = ends.pop("bad")
    assert isinstance(failed, Failed)
    assert failed.error.kind == "invalid_request"
    assert "can't take this" in failed.error.message
    assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(
        ("text", "good", "more"), Finished
    )
    assert bench.run(good)[0]["good"] == bench.judged("What?", [picture(60, 28, 1)])
