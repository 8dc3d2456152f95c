"""Pictures by mlx-vlm's own pipelines: pixel by pixel those of mlx-vlm, on tiny random checkpoints of Z-Image.

`test_library_families.py` compares the other families."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from pippin.core.events import Failed, Picture, PicturesDone
from pippin.core.tasks import GenerateImages
from pippin.engines import pictures
from tests.engines.images.library_bench import SMALL, Painter, edited, generated, pixels, png
from tests.engines.images.tiny_pipelines import tiny_z_image
from tests.running_server import running_server


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painter]:
    made = Painter(tiny_z_image(tmp_path_factory.mktemp("models") / "tiny-z-image"))
    yield made
    made.engine.close()


@pytest.mark.parametrize(("written", "mode"), [("png", "RGBA"), ("webp", "RGBA"), ("jpeg", "RGB")])
def test_what_shines_through_stays_so_where_the_format_has_it(
    written: pictures.PictureFormat, mode: str
) -> None:
    """Ming-Image paints on nothing."""
    picture = Image.new("RGBA", (8, 8), (200, 10, 10, 90))
    with Image.open(io.BytesIO(pictures.encode(picture, written, 100))) as found:
        assert found.mode == mode
        if mode == "RGBA":
            assert np.array(found)[4, 4, 3] == 90
        else:
            assert np.allclose(np.array(found)[4, 4], (236, 169, 169), atol=4)  # as on white paper


def test_a_picture_is_mlx_vlms(painter: Painter) -> None:
    assert np.array_equal(painter.paint()[0], generated(painter.folder))
    asked = {"negative_prompt": "blue", "guidance": 3.0}
    found = painter.paint(**asked)[0]
    assert np.array_equal(found, generated(painter.folder, **asked))
    assert not np.array_equal(found, painter.paint()[0])


def test_an_edited_picture_is_mlx_vlms(painter: Painter, tmp_path: Path) -> None:
    path = tmp_path / "given.png"
    path.write_bytes(png())
    found = painter.paint(images=(png(),), strength=0.5)[0]
    assert np.array_equal(found, edited(painter.folder, [path], strength=0.5))
    other = painter.paint(images=(png((10, 200, 10)),), strength=0.5)[0]
    assert not np.array_equal(found, other)
    # The same weights go on generating.
    assert np.array_equal(painter.paint()[0], generated(painter.folder))


def test_pictures_have_seeds_one_after_the_other(painter: Painter) -> None:
    events = painter.events(n=2, seed=8)
    made = [event for event in events if isinstance(event, Picture)]
    assert [each.seed for each in made] == [8, 9]
    assert isinstance(events[-1], PicturesDone)
    assert np.array_equal(pixels(made[1].data), painter.paint(seed=9)[0])


def test_quality_scales_the_models_own_steps(painter: Painter) -> None:
    assert painter.engine.stats().running == 0
    low = painter.paint(steps=None, effort="low")[0]
    assert np.array_equal(low, generated(painter.folder, steps=25))  # of 50


def test_what_the_pipeline_says_of_its_arguments_reaches_the_client(painter: Painter) -> None:
    (failed,) = painter.events(width=40)
    assert isinstance(failed, Failed)
    assert failed.error.kind == "invalid_request"
    assert "multiple of 16" in failed.error.message


def test_a_cancelled_picture_ends_with_its_step(painter: Painter) -> None:
    job = painter.preparer.prepare("long", GenerateImages(prompt="x", **{**SMALL, "steps": 1000}))
    assert not isinstance(job, tuple)
    painter.engine.submit(job)
    painter.engine.step()
    painter.engine.cancel("long")
    assert not painter.engine.busy
    assert painter.paint()


@pytest.mark.parametrize(
    ("param", "asked"),
    [
        ("strength", {"strength": 0.5}),
        ("image", {"images": (png(), png())}),
        ("negative_prompt", {"negative_prompt": "blue", "guidance": 1.0}),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(painter: Painter, param: str, asked: dict[str, Any]) -> None:
    assert painter.refusal(**asked).report.param == param


def test_pictures_come_from_the_addresses_of_openai(tmp_path: Path) -> None:
    tiny_z_image(tmp_path / "models" / "tiny-z-image", turbo=True)
    (tmp_path / "home").mkdir()
    words = ("tiny-z-image", "--model-dir", str(tmp_path / "models"))
    with running_server(tmp_path / "home", *words) as address:
        body = {"prompt": "a red fish", "size": "32x32", "steps": 3, "seed": 5}
        made = httpx.post(f"{address}/v1/images/generations", json=body, timeout=60)
        assert made.status_code == 200, made.text
        assert made.json()["data"][0]["b64_json"]
        form = {"prompt": "a red fish", "size": "32x32", "seed": "5"}
        files = {"image": ("given.png", png(), "image/png")}
        edit = httpx.post(f"{address}/v1/images/edits", data=form, files=files, timeout=60)
        assert edit.status_code == 200, edit.text
        refused = httpx.post(f"{address}/v1/images/generations", json={**body, "guidance": 4}, timeout=60)
        assert refused.status_code == 400
        assert "classifier-free guidance" in refused.json()["error"]["message"]
