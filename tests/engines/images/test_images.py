"""The image engine over a pipeline that draws without a model; `test_images_mflux.py` runs the real one."""

import io
import json
import struct
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, Picture, PicturesDone, Progress
from pippin.core.image_presets import PRESETS, preset_of
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Embed, GenerateImages
from pippin.engines import pictures
from pippin.engines.blocking import BlockingEngine
from pippin.engines.images import open_preparer
from pippin.engines.images.mflux_classes import CLASSES
from pippin.engines.images.painting import ImagePreparer, Pipeline
from pippin.engines.images.requests import size_of
from tests.engines.driving import run


class Drawing:
    """Has the shape of mflux's models: callbacks, and `generate_image` that calls them after each step."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.callbacks = SimpleNamespace(in_loop=[])
        self.asked: list[dict[str, Any]] = []
        self.steps = 0
        self._seconds = seconds

    def generate_image(
        self,
        seed: int,
        prompt: str,
        num_inference_steps: int,
        width: int,
        height: int,
        guidance: float = 4.0,
        image_path: str | None = None,
        image_strength: float | None = None,
        negative_prompt: str | None = None,
    ) -> Any:
        self.asked.append({name: value for name, value in locals().items() if name != "self"})
        if image_path is not None:
            with Image.open(image_path) as given:
                self.asked[-1]["pixel"] = given.getpixel((0, 0))
        config = SimpleNamespace(
            num_inference_steps=num_inference_steps, init_time_step=0, width=width, height=height
        )
        for step in range(num_inference_steps):
            time.sleep(self._seconds)
            self.steps += 1
            for callback in self.callbacks.in_loop:
                callback.call_in_loop(t=step, seed=seed, prompt=prompt, latents=step, config=config)
        return SimpleNamespace(image=Image.new("RGB", (width, height), (seed % 256, 0, 0)))


def size(path: str) -> tuple[int, int]:
    with Image.open(path) as given:
        return given.size


class ListedImages(Drawing):
    """As those that edit several pictures."""

    def generate_image(self, image_paths: list[str], **others: Any) -> Any:  # type: ignore[override]
        self.asked.append({"image_paths": [size(path) for path in image_paths], **others})
        return SimpleNamespace(image=Image.new("RGB", (others["width"], others["height"])))


def preparer(preset: str = "flux-dev") -> ImagePreparer:
    info = ModelInfo(id="painter", kind="images", path="/nowhere")
    return ImagePreparer(WorkerSpec(info=info, options={"config_name": preset}))


def image_model(name: str = "my-model", pipeline: str | None = None) -> ModelInfo:
    return ModelInfo(id=name, kind="images", path="/models/x", architecture=pipeline)


def engine_of(model: Drawing, preset: str = "flux-dev") -> BlockingEngine[Pipeline]:
    def preview(latents: int, height: int, width: int) -> Image.Image:
        return Image.new("RGB", (width, height), (0, latents, 0))

    return BlockingEngine(lambda: Pipeline(model, preset_of(image_model(), preset), preview))


@pytest.fixture
def model() -> Drawing:
    return Drawing()


def paint(model: Drawing, preset: str = "flux-dev", **fields: Any) -> list[Event]:
    engine = engine_of(model, preset)
    job = preparer(preset).prepare("one", GenerateImages(**{"prompt": "a red fish", **fields}))
    assert not isinstance(job, tuple)
    events = run(engine, job)["one"]
    engine.close()
    return events


def png(width: int = 40, height: int = 20, mode: str = "RGB", colour: Any = (1, 2, 3)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), colour).save(file, "PNG")
    return file.getvalue()


def test_each_picture_has_the_next_seed(model: Drawing) -> None:
    events = paint(model, n=3, seed=2**32 - 1, width=64, height=32, steps=2)
    found = [event for event in events if isinstance(event, Picture)]
    assert [picture.seed for picture in found] == [2**32 - 1, 0, 1]
    assert [picture.index for picture in found] == [0, 1, 2]
    assert all((picture.width, picture.height) == (64, 32) for picture in found)
    assert isinstance(events[-1], PicturesDone)


def test_fibo_gets_every_prompt_as_a_json_object(model: Drawing) -> None:
    for prompt in ("a red fish", '{"objects": ["fish"]}', "[7]"):
        paint(model, "fibo", prompt=prompt, width=64, height=64)
    asked = [json.loads(each["prompt"]) for each in model.asked]
    assert asked == [
        {"short_description": "a red fish"},
        {"objects": ["fish"]},
        {"short_description": "[7]"},
    ]


def test_without_a_seed_pictures_differ(model: Drawing) -> None:
    paint(model, width=64, height=64, steps=1)
    paint(model, width=64, height=64, steps=1)
    assert model.asked[0]["seed"] != model.asked[1]["seed"]


def test_steps_are_reported_over_all_pictures(model: Drawing) -> None:
    events = paint(model, n=2, width=64, height=64, steps=3)
    steps = [(event.done, event.total) for event in events if isinstance(event, Progress)]
    assert steps == [(number, 6) for number in range(1, 7)]


def test_previews_are_spread_over_the_steps(model: Drawing) -> None:
    events = paint(model, width=64, height=64, steps=9, partial_images=2)
    shown = [event for event in events if isinstance(event, Picture)]
    assert [picture.partial for picture in shown] == [0, 1, None]
    steps = []
    for event in events:
        if isinstance(event, Progress):
            steps.append(event.done)
        elif isinstance(event, Picture) and event.partial is not None:
            assert steps[-1] == 3 * (event.partial + 1)


def test_effort_changes_the_number_of_steps_and_steps_win(model: Drawing) -> None:
    for fields, steps in (({}, 25), ({"effort": "low"}, 12), ({"effort": "high"}, 38), ({"steps": 3}, 3)):
        paint(model, width=64, height=64, **fields)
        assert model.asked[-1]["num_inference_steps"] == steps


def test_guidance_is_the_presets_or_the_requests(model: Drawing) -> None:
    paint(model, width=64, height=64, steps=1)
    paint(model, width=64, height=64, steps=1, guidance=7.0)
    assert [asked["guidance"] for asked in model.asked] == [3.5, 7.0]


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_pictures_come_in_the_format_asked_for(model: Drawing, format: Any) -> None:
    [*_, picture, _] = paint(model, width=64, height=64, steps=1, format=format, quality=50)
    assert isinstance(picture, Picture)
    assert Image.open(io.BytesIO(picture.data)).format == format.upper()


def test_a_picture_to_start_from_reaches_the_pipeline(model: Drawing) -> None:
    paint(model, images=(png(),), steps=1, strength=0.7)
    assert model.asked[0]["pixel"] == (1, 2, 3)
    assert model.asked[0]["image_strength"] == 0.7
    assert not Path(model.asked[0]["image_path"]).exists()


def test_several_pictures_reach_a_pipeline_that_takes_them() -> None:
    model = ListedImages()
    paint(model, "qwen-image-edit", images=(png(), png(10, 10)), width=64, height=64, negative_prompt="blue")
    assert model.asked[0]["image_paths"] == [(40, 20), (10, 10)]
    assert model.asked[0]["negative_prompt"] == "blue"


def test_a_cancelled_request_stops_between_steps_and_its_id_is_free() -> None:
    model = Drawing(seconds=0.02)
    engine = engine_of(model)
    first = preparer().prepare("first", GenerateImages(prompt="x", steps=200, width=64, height=64))
    second = preparer().prepare("first", GenerateImages(prompt="y", steps=2, width=64, height=64))
    assert not isinstance(first, tuple)
    assert not isinstance(second, tuple)
    engine.submit(first)
    while not engine.step():
        pass
    engine.cancel("first")
    found = run(engine, second)
    engine.close()
    assert isinstance(found["first"][-1], PicturesDone)
    assert [event.total for event in found["first"] if isinstance(event, Progress)] == [2, 2]
    assert model.steps < 60
    assert model.callbacks.in_loop == []


def test_a_pipeline_that_fails_ends_only_its_request(model: Drawing) -> None:
    engine = engine_of(model)
    broken = preparer().prepare("broken", GenerateImages(prompt="x", steps=1, width=64, height=64))
    assert not isinstance(broken, tuple)
    model.callbacks = None  # type: ignore[assignment]
    [failed] = run(engine, broken)["broken"]
    assert isinstance(failed, Failed)
    assert failed.error.kind == "internal"
    engine.close()


@pytest.mark.parametrize(
    ("preset", "fields", "param"),
    [
        ("flux-schnell", {"guidance": 3.0}, "guidance"),
        ("flux-dev", {"negative_prompt": "blue"}, "negative_prompt"),
        ("flux-kontext-dev", {}, "image"),
        ("flux-dev", {"images": (png(), png())}, "image"),
        ("flux-kontext-dev", {"images": (png(), png())}, "image"),
        ("flux-kontext-dev", {"images": (png(),), "mask": png()}, "mask"),
        ("flux-dev", {"strength": 0.5}, "strength"),
        ("flux-dev", {"images": (b"no picture",)}, "image[0]"),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name(preset: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ServerError) as caught:
        preparer(preset).prepare("a", GenerateImages(prompt="x", **fields))
    assert (caught.value.report.status, caught.value.report.param) == (400, param)


def test_an_image_model_only_makes_pictures() -> None:
    with pytest.raises(ServerError, match="makes pictures"):
        preparer().prepare("a", Embed(inputs=("x",)))


def test_every_preset_of_mlx_openai_server_is_there() -> None:
    names = (
        "flux-schnell flux-dev flux-krea-dev flux-kontext-dev qwen-image qwen-image-edit fibo z-image-turbo "
        "flux2-klein-4b flux2-klein-9b flux2-klein-edit-4b flux2-klein-edit-9b"
    )
    assert {preset.name for preset in PRESETS} == CLASSES.keys() >= set(names.split())


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("black-forest-labs/FLUX.1-schnell", "flux-schnell"),
        ("black-forest-labs/FLUX.1-Krea-dev", "flux-krea-dev"),
        ("dhairyashil/FLUX.1-dev-mflux-4bit", "flux-dev"),
        ("Qwen/Qwen-Image-Edit-2509", "qwen-image-edit"),
        ("Qwen/Qwen-Image-Edit-2511", "qwen-image-edit-2511"),
        ("briaai/FIBO", "fibo"),
        ("briaai/Fibo-lite", "fibo-lite"),
        ("Tongyi-MAI/Z-Image", "z-image"),
        ("black-forest-labs/FLUX.2-klein-base-9B", "flux2-klein-base-9b"),
        ("filipstrand/Z-Image-Turbo-mflux-4bit", "z-image-turbo"),
        ("black-forest-labs/FLUX.2-klein-4B", "flux2-klein-4b"),
    ],
)
def test_a_preset_is_found_by_the_repositorys_name(name: str, preset: str) -> None:
    assert preset_of(image_model(name), None).name == preset


@pytest.mark.parametrize("name", ["Qwen/Qwen-Image-2.1", "briaai/Fibo-Edit", "briaai/FIBO-2"])
def test_models_of_other_kinds_are_not_taken_for_those_of_like_names(name: str) -> None:
    with pytest.raises(ServerError, match="--config-name"):
        preset_of(image_model(name), None)


@pytest.mark.parametrize(
    ("name", "pipeline", "preset"),
    [
        ("Tongyi-MAI/Z-Image", "ZImagePipeline", "z-image"),
        ("Tongyi-MAI/Z-Image-Turbo", "ZImagePipeline", "z-image-turbo"),
        ("painter", "ZImagePipeline", "z-image-turbo"),
        ("painter", "QwenImageEditPlusPipeline", "qwen-image-edit"),
        ("painter", "BriaFiboPipeline", "fibo"),
    ],
)
def test_of_models_with_one_pipeline_the_name_tells(name: str, pipeline: str, preset: str) -> None:
    assert preset_of(image_model(name, pipeline), None).name == preset


def test_a_prompt_that_lies_too_deep_in_itself_is_plain_text_to_fibo(model: Drawing) -> None:
    deep = '{"a":' * 6000
    paint(model, "fibo", prompt=deep, width=64, height=64)
    assert json.loads(model.asked[0]["prompt"]) == {"short_description": deep}


def test_a_preset_is_found_by_the_folders_pipeline_or_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="--config-name"):
        preset_of(image_model(), None)
    with pytest.raises(ServerError, match="no image model preset 'x'"):
        preset_of(image_model(), "x")
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxKontextPipeline"}')
    (tmp_path / "config.json").write_text('{"model_type": "not-the-pipeline"}')
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 16)
    assert preset_of(read_info(tmp_path, kind="images"), None).name == "flux-kontext-dev"


def test_without_the_extra_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerError, match=r'pip install "pippin\[images\]"'):
        open_preparer(WorkerSpec(info=ModelInfo(id="flux-dev", kind="images", path="/nowhere")))


def test_an_edit_keeps_the_shape_of_its_picture() -> None:
    task = GenerateImages(prompt="x")
    assert size_of(task, []) == (1024, 1024)
    width, height = size_of(task, [Image.new("RGB", (4000, 2000))])
    assert width == pytest.approx(2 * height, rel=0.02)
    assert 900_000 < width * height < 1_200_000
    assert width % 16 == height % 16 == 0


# Pictures from clients


def bomb(side: int) -> bytes:
    """A small file that claims to be a huge picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def status_of(data: bytes) -> int:
    try:
        pictures.decode(data, param="image")
    except ServerError as error:
        return error.report.status
    return 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"hello", 400),
        (png()[:30], 400),
        (png()[:60], 400),
        (bomb(60_000), 400),
        (bomb(9_000), 400),
        (bomb(0), 400),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 400),
        (b"RIFF\x00\x00\x00\x00WEBP", 400),
    ],
)
def test_what_is_no_whole_picture_is_refused(data: bytes, status: int) -> None:
    assert status_of(data) == status


def test_pictures_of_odd_kinds_become_plain_ones() -> None:
    cmyk = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(cmyk, "JPEG")
    assert pictures.decode(cmyk.getvalue(), param="x").mode == "RGB"
    assert pictures.decode(png(mode="LA", colour=(5, 5)), param="x").mode == "RGBA"
    assert pictures.decode(png(mode="I;16", colour=5), param="x").mode == "RGB"
    moving = io.BytesIO()
    Image.new("P", (8, 8)).save(moving, "GIF", save_all=True, append_images=[Image.new("P", (8, 8), 1)])
    assert pictures.decode(moving.getvalue(), param="x").size == (8, 8)
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save(turned, "JPEG", exif=exif)
    assert pictures.decode(turned.getvalue(), param="x").size == (4, 8)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_pictures_never_crash(data: st.DataObject) -> None:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((32, 32)).save(
        file, data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]))
    )
    whole = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert status_of(bytes(whole)) in (200, 400, 413)
