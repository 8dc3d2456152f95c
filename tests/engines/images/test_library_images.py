"""Pictures by mlx-vlm's own pipelines: pixel by pixel those of mlx-vlm, on tiny random checkpoints of Z-Image, and of
families beside it."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
from PIL import Image

from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, Picture, PicturesDone
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Embed, GenerateImages
from pippin.engines import images, pictures
from pippin.engines.images import library
from pippin.engines.images.library import LibraryImagePreparer
from tests.engines.driving import no_progress, run
from tests.engines.images.tiny_families import tiny_ming_image, tiny_moss_image
from tests.engines.images.tiny_pipelines import tiny_z_image
from tests.running_server import running_server

SMALL: dict[str, Any] = {"width": 32, "height": 32, "steps": 3, "seed": 5}


class Painter:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        spec = WorkerSpec(info=read_info(folder), options=options)
        self.preparer = images.open_preparer(spec)
        assert isinstance(self.preparer, LibraryImagePreparer)
        self.engine = images.open_engine(spec, self.preparer, no_progress)

    def events(self, **asked: Any) -> list[Event]:
        job = self.preparer.prepare("a", GenerateImages(**{"prompt": "a red fish", **SMALL, **asked}))
        assert not isinstance(job, tuple)
        return run(self.engine, job)["a"]

    def paint(self, **asked: Any) -> list[np.ndarray[Any, Any]]:
        return [pixels(event.data) for event in self.events(**asked) if isinstance(event, Picture)]

    def refusal(self, **asked: Any) -> ServerError:
        with pytest.raises(ServerError) as caught:
            self.preparer.prepare("a", GenerateImages(**{"prompt": "a red fish", **SMALL, **asked}))
        return caught.value


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painter]:
    made = Painter(tiny_z_image(tmp_path_factory.mktemp("models") / "tiny-z-image"))
    yield made
    made.engine.close()


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as found:
        return np.array(found.convert("RGB"))


FAMILIES: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "moss_image": (tiny_moss_image, {}),
    "ming_image": (tiny_ming_image, {"width": 256, "height": 256, "steps": 1}),
}


@pytest.mark.parametrize("family", ["moss_image", pytest.param("ming_image", marks=pytest.mark.long)])
def test_a_picture_of_another_family_is_mlx_vlms(family: str, tmp_path: Path) -> None:
    """Twice: pipelines give parts of themselves up after a picture."""
    make, asked = FAMILIES[family]
    painter = Painter(make(tmp_path / family.replace("_", "-")))
    try:
        assert painter.preparer.classes.family == family
        expected = generated(painter.folder, **asked)[..., :3]
        for _ in range(2):
            [found] = painter.paint(**asked)
            assert np.array_equal(found, expected)
        [other] = painter.paint(**{**asked, "seed": 6})
        assert not np.array_equal(other, expected)
    finally:
        painter.engine.close()


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


def test_no_other_model_is_fetched_for_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mlx-vlm's FLUX.3 lets a language model of the hub write the prompt anew, if it is not told otherwise; its Bonsai
    decodes with a file of another repository."""
    asked: list[Any] = []

    class Flux3:
        family = "flux3"
        default_sampling = None

        def generator(self) -> Any:
            return self

        def generate(self, request: Any) -> Any:
            asked.append(request)
            return self

        image = Image.new("RGB", (8, 8))

    library._painted(cast(library.LibraryPipeline, Flux3()), GenerateImages(prompt="fish"), [], 1)
    assert asked[0].extra["upsample_prompt"] is False
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    with pytest.raises(ServerError, match="hf download"):
        library.refuse_without_decoder(ModelInfo(id="bonsai", kind="images"))


def png(colour: tuple[int, int, int] = (200, 20, 20)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), colour).save(file, "PNG")
    return file.getvalue()


def generated(folder: Path, **asked: Any) -> np.ndarray[Any, Any]:
    """By mlx-vlm itself."""
    from mlx_vlm.generate.image import generate_image, load_image_generation_model

    settings = {name: value for name, value in {**SMALL, **asked}.items() if value is not None}
    model = load_image_generation_model(str(folder))
    return np.array(generate_image(model, "a red fish", **settings).array)


def edited(folder: Path, path: Path, **asked: Any) -> np.ndarray[Any, Any]:
    from mlx_vlm.generate.edit_image import edit_image, load_image_edit_model

    model = load_image_edit_model(str(folder))
    return np.array(edit_image(model, "a red fish", image_paths=[path], **{**SMALL, **asked}).array)


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
    assert np.array_equal(found, edited(painter.folder, path, strength=0.5))
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
        ("mask", {"images": (png(),), "mask": png()}),
        ("strength", {"strength": 0.5}),
        ("image", {"images": (png(), png())}),
        ("partial_images", {"partial_images": 1}),
        ("negative_prompt", {"negative_prompt": "blue", "guidance": 1.0}),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(painter: Painter, param: str, asked: dict[str, Any]) -> None:
    assert painter.refusal(**asked).report.param == param


def test_it_paints_and_nothing_else(painter: Painter) -> None:
    with pytest.raises(ServerError, match="makes pictures"):
        painter.preparer.prepare("a", Embed(inputs=("x",)))


@pytest.mark.parametrize("option", [{"quantize": 8}, {"lora_paths": ["a"]}])
def test_options_of_mflux_are_refused_at_the_load(painter: Painter, option: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match=next(iter(option))):
        Painter(painter.folder, **option)


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
