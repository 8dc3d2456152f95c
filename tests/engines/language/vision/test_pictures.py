"""Pictures that strangers send: what is read, and what is refused with a sentence, by the model itself too."""

import io
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mlx_vlm.models.llama4.processing_llama4 import Llama4ImageProcessor
from mlx_vlm.utils import load_processor
from PIL import Image as Pictures
from PIL.Image import Resampling

from pippin.core.conversation import Image, Inline
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, Finished
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.vision.preprocessor import (
    in_older_files,
    other_pixels,
    resize_alike,
    settings_in,
    settings_of,
    splitting,
    unprepared,
)
from pippin.engines.language.vision.processing import resized, unpreparable
from pippin.engines.language.vision.tiles import best_canvas, canvases, cut_into_tiles, in_windows
from pippin.engines.pictures import MOST_PIXELS, decode
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_any_family import import_torchvision
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

WHERE = "messages[0].content[1]"


def encoded(image: Pictures.Image, format: str, **settings: object) -> bytes:
    written = io.BytesIO()
    image.save(written, format, **settings)
    return written.getvalue()


def png_of(
    width: int, height: int, pixels: bytes = b"\0" * 64, kind: tuple[int, int] = (8, 2), clear: bytes = b""
) -> bytes:
    """A PNG that claims a size and holds next to nothing, or these lines of pixels; `kind`: bits, and colour type."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, *kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + (chunk(b"tRNS", clear) if clear else b"")
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_usual_formats_are_read(format: str) -> None:
    image = decode(picture(30, 20, 1, format), param=WHERE)
    assert (image.size, image.mode) == ((30, 20), "RGB")


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "I;16"])
def test_all_kinds_of_colour_become_rgb(mode: str) -> None:
    image = Pictures.new("L", (8, 6), 200).convert("I").convert(mode) if mode == "I;16" else None
    image = image or Pictures.new("RGB", (8, 6), (200, 100, 50)).convert(mode)
    assert decode(encoded(image, "PNG"), param=WHERE).mode == "RGB"


def half_clear(mode: str) -> Pictures.Image:
    """Black on the right; on the left a hidden colour of no opacity."""
    picture = Pictures.new("RGBA", (16, 8), (255, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (8, 0, 16, 8))
    return picture.convert(mode) if mode != "P" else picture.quantize(4)


@pytest.mark.parametrize(
    ("mode", "format"),
    [
        ("RGBA", "PNG"),
        ("LA", "PNG"),
        ("P", "PNG"),
        ("RGBA", "GIF"),
        ("RGBA", "WEBP"),
        ("RGBA", "TIFF"),
        ("RGBA", "AVIF"),
    ],
)
def test_what_is_transparent_is_white(mode: str, format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    found = np.asarray(decode(encoded(half_clear(mode), format, **options), param=WHERE)).astype(int)
    assert found[:, :6].min() > 240
    assert found[:, 10:].max() < 15


def test_what_is_half_transparent_is_half_white() -> None:
    found = decode(encoded(Pictures.new("RGBA", (4, 4), (0, 0, 0, 128)), "PNG"), param=WHERE)
    assert found.getpixel((1, 1)) == (127, 127, 127)


def test_a_grey_of_16_bits_and_no_opacity_is_white() -> None:
    values = (0x1234, 0x1235, 0xFF00)
    shown = png_of(3, 1, b"\0" + struct.pack(">3H", *values), (16, 0), struct.pack(">H", values[0]))
    found = decode(shown, param=WHERE)
    assert [found.getpixel((place, 0)) for place in range(3)] == [(255,) * 3, (0x12,) * 3, (0xFF,) * 3]


@pytest.mark.parametrize("type_", [np.float32, np.int32])
def test_greys_of_32_bits_are_refused_as_their_white_is_not_told(type_: type) -> None:
    shown = Pictures.fromarray(np.eye(4, dtype=type_))
    with pytest.raises(ServerError, match="32 bits for each grey"):
        decode(encoded(shown, "TIFF"), param=WHERE)


def test_a_grey_of_no_opacity_is_white() -> None:
    clear = encoded(Pictures.new("L", (4, 4), 9), "PNG", transparency=9)
    assert decode(clear, param=WHERE).getpixel((1, 1)) == (255, 255, 255)


def test_cmyk_becomes_rgb() -> None:
    red = Pictures.new("CMYK", (8, 8), (0, 255, 255, 0))
    found = decode(encoded(red, "JPEG"), param=WHERE).getpixel((4, 4))
    assert isinstance(found, tuple)
    assert found[0] > 200
    assert found[1] < 60


def test_greys_of_16_bits_keep_their_shades() -> None:
    shades = np.array([[0, 1 << 14, 1 << 15, (1 << 16) - 1]], np.uint16)
    found = decode(encoded(Pictures.fromarray(shades), "PNG"), param=WHERE)
    assert np.asarray(found)[0, :, 0].tolist() == [0, 64, 128, 255]


def test_a_picture_taken_sideways_stands_upright() -> None:
    exif = Pictures.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert decode(encoded(Pictures.new("RGB", (30, 20)), "JPEG", exif=exif), param=WHERE).size == (20, 30)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_animations_the_first_frame_is_taken(format: str) -> None:
    frames = [Pictures.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    moving = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    found = decode(moving, param=WHERE).getpixel((3, 3))
    assert isinstance(found, tuple)
    assert found[0] > 200
    assert found[2] < 60


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is no picture of a kind"),
        (b"not a picture at all", "no picture of a kind"),
        (b"%PDF-1.7\n1 0 obj", "no picture of a kind"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture of a kind"),
        (encoded(Pictures.new("RGB", (9, 9)), "TGA"), "no picture of a kind"),
        (encoded(Pictures.new("RGB", (99, 99)), "TIFF")[:200], "damaged or cut off"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture of a kind"),
        (picture(300, 300, 1, "JPEG")[:200], "damaged or cut off"),
        (picture(300, 300, 1, "PNG")[:60], "damaged or cut off"),
        (picture(64, 64, 1, "WEBP")[:-40], "damaged or cut off"),
        (png_of(50, 50), "damaged or cut off"),
        (png_of(0, 0), ""),
        (png_of(20_000, 20_000), "too many pixels"),
        (png_of(65_000, 65_000), "too many pixels"),
        (png_of(10_000, 9_000), "too many pixels"),
        (png_of(70_000, 1), "too many pixels"),
    ],
)
def test_what_is_no_whole_picture_is_refused_by_name(data: bytes, words: str) -> None:
    with pytest.raises(ServerError) as caught:
        decode(data, param=WHERE)
    report = caught.value.report
    assert (report.kind, report.param) == ("invalid_request", WHERE)
    assert words in report.message
    assert WHERE in report.message


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.4, 0.999])
def test_of_a_damaged_picture_is_shown_what_it_has(format: str, share: float) -> None:
    whole = picture(300, 300, 1, format)
    expected = np.asarray(decode(whole, param=WHERE)).astype(int)
    found = np.asarray(decode(whole[: int(len(whole) * share)], param=WHERE)).astype(int)
    alike = np.abs(found - expected).max(axis=(1, 2)) < 40
    assert alike.mean() > share - 0.15


def test_a_progressive_picture_that_is_cut_off_is_coarse() -> None:
    spots = Pictures.open(io.BytesIO(picture(300, 300)))
    whole = encoded(spots, "JPEG", progressive=True)
    found = decode(whole[: len(whole) // 2], param=WHERE)
    assert np.abs(np.asarray(found).astype(int) - np.asarray(spots)).mean() < 12


def test_pictures_are_resized_as_asked() -> None:
    image = decode(picture(100, 40), param=WHERE)
    source = Inline(b"")
    assert resized(image, Image(source, resize=(30, 50)), None, None, WHERE).size == (50, 30)
    smaller = resized(image, Image(source), None, 1000, WHERE)
    assert smaller.size == (50, 20)
    larger = resized(image, Image(source), 16_000, None, WHERE)
    assert larger.size == (200, 80)
    with pytest.raises(ServerError, match="too many pixels"):
        resized(image, Image(source, resize=(MOST_PIXELS, 2)), None, None, WHERE)


def test_what_a_processor_says_of_its_failure_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        found = unpreparable(WHERE, ValueError("height and width must be > 0"), 2).report
    assert found.message.endswith(
        "can't be prepared for this model: its processor fails on it; send one of another size or length."
    )
    assert "or a medium before it" in found.message
    assert "height and width must be > 0" in caplog.text


def endings(bench: VisionBench, *jobs: LanguageJob) -> dict[str, Event]:
    engine = bench.new_engine()
    for job in jobs:
        engine.submit(job)
    found: dict[str, Event] = {}
    while engine.busy:
        found |= {name: event for name, event in engine.step() if isinstance(event, Failed | Finished)}
    return found


def test_a_picture_that_the_model_cannot_take_ends_its_own_request(tmp_path: Path) -> None:
    bench = VisionBench(write("lfm2_vl", FAMILIES["lfm2_vl"], tmp_path / "lfm2_vl"))
    good = bench.job("good", picture(60, 28, 1), "What?")
    ends = endings(
        bench,
        bench.job("text", "Hello"),
        bench.job("bad", encoded(Pictures.new("RGB", (20_000, 1), "red"), "PNG"), "What?"),
        good,
        bench.job("more", "Hi"),
    )
    failed = ends.pop("bad")
    assert isinstance(failed, Failed)
    assert failed.error.kind == "invalid_request"
    assert "can't take this image: its code fails on it. Send one of another" in failed.error.message
    assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(
        ("text", "good", "more"), Finished
    )
    assert bench.run(good)[0]["good"] == bench.judged("What?", [picture(60, 28, 1)])


def test_a_picture_of_which_the_processor_makes_no_tokens_is_refused(tmp_path: Path) -> None:
    bench = VisionBench(write("kimi_vl", FAMILIES["kimi_vl"], tmp_path / "kimi_vl"))
    with pytest.raises(ServerError, match="can't take this image: its processor makes no tokens of it"):
        bench.job("bad", encoded(Pictures.new("RGB", (1, 1), "red"), "PNG"), "What?")


def tiled(*pictures: Pictures.Image) -> dict[str, Any]:
    processor = SimpleNamespace(image_processor=Llama4ImageProcessor())
    cut_into_tiles(processor, {"model_type": "llama4"})
    return dict(processor.image_processor(images=[*pictures]))


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        # Height and width, as transformers 5.23 cuts them.
        ((40, 30), (1, 1)),
        ((336, 336), (1, 1)),
        ((500, 400), (2, 2)),
        ((1200, 900), (4, 3)),
        ((700, 1344), (3, 4)),
        ((2000, 2100), (4, 4)),
        ((100, 3000), (1, 9)),
        ((3000, 50), (9, 1)),
        ((1, 1), (1, 1)),
    ],
)
def test_a_picture_is_cut_as_by_transformers(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert best_canvas(size, canvases(16), 336) == grid


def test_of_several_tiles_the_last_is_the_whole_picture() -> None:
    left_is_white = Pictures.new("L", (672, 300))
    left_is_white.paste(255, (0, 0, 336, 300))
    found = tiled(left_is_white, Pictures.new("RGB", (20, 20)))
    assert found["aspect_ratios"] == [(1, 2), (1, 1)]
    left, right, whole, other = found["pixel_values"]
    assert left.shape == (3, 336, 336)
    assert (left[:, :300].min(), left[:, 300:].max()) == (1.0, -1.0)  # black fills the canvas below
    assert right.max() == -1.0
    assert (whole[:, :, :160].min(), whole[:, :, 176:].max()) == (1.0, -1.0)
    assert other.max() == -1.0


@pytest.mark.long
def test_pixels_are_those_of_transformers() -> None:
    import_torchvision()
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    for width, height in ((30, 40), (400, 500), (900, 1200), (3000, 100), (1344, 700)):
        shown = Pictures.linear_gradient("L").rotate(30).resize((width, height)).convert("RGB")
        ours = tiled(shown)
        theirs = Llama4ImageProcessor()(images=[shown], return_tensors="pt")
        # They compute in bfloat16.
        np.testing.assert_allclose(
            ours["pixel_values"], theirs["pixel_values"].float().numpy(), atol=2**-6, rtol=0
        )


def test_each_tile_of_a_prompt_has_pixels(tmp_path: Path) -> None:
    made = write("llama4", FAMILIES["llama4"], tmp_path / "llama4")
    wide = picture(120, 28, 1)
    bench = VisionBench(made)
    media = bench.job("a", wide, "What?").media
    assert media is not None
    medium = media.placed[0].medium  # type: ignore[union-attr]
    tiles, features = len(medium.arrays["pixel_values"]), 4
    assert len(medium.placeholders) == tiles * features
    assert tiles == 4
    # mlx-vlm writes the tokens of one tile more than it has pixels of: its model reads past the end of the features.
    theirs = load_processor(made, eos_token_ids=256, trust_remote_code=False)
    found = theirs(text=["<|image|>"], images=[Pictures.new("RGB", (120, 28))])
    patches = int((found["input_ids"] == bench.preparer.tokenizer.single("<|patch|>")).sum().item())
    assert patches == (len(found["pixel_values"]) + 1) * features


@pytest.mark.parametrize("raised", [AssertionError, OverflowError, ZeroDivisionError, StopIteration])
def test_whatever_a_processor_raises_refuses_its_picture_alone(
    raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = VisionBench(write("llama4", FAMILIES["llama4"], tmp_path / "llama4"))

    def fail(*_: object, **__: object) -> None:
        raise raised("odd")

    with monkeypatch.context() as patch:
        patch.setattr(Llama4ImageProcessor, "preprocess", fail)
        with pytest.raises(ServerError) as caught:
            bench.job("a", picture(60, 28, 1), "What?")
    assert (caught.value.report.kind, caught.value.report.param) == (
        "invalid_request",
        "messages[0].content[0]",
    )
    assert bench.alone(bench.job("b", picture(60, 28, 1), "What?"))


PREPARES = SimpleNamespace(
    size={"height": 448, "width": 448},
    image_mean=(0.5, 0.5, 0.5),
    min_pixels=64,
    do_resize=True,
    patch_size=14,
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"size": 448, "image_mean": [0.5, 0.5, 0.5], "do_resize": True}, []),
        ({"image_mean": [0.48, 0.46, 0.41]}, ["image_mean"]),
        ({"do_resize": False}, ["do_resize"]),
        ({"rescale_factor": 0.00392156862745098, "do_rescale": True, "do_normalize": True}, []),
        ({"rescale_factor": 0.0078, "do_normalize": False}, ["do_normalize", "rescale_factor"]),
        ({"do_normalize": False, "image_mean": [0.0, 0.0, 0.0]}, ["do_normalize"]),
        ({"size": {"height": 448, "width": 448}, "max_patches": 12}, []),
        ({"patch_size": {"height": 14, "width": 14}}, []),
        ({"patch_size": {"height": 14, "width": 16}}, ["patch_size"]),
        ({"patch_size": [14, 16]}, ["patch_size"]),
    ],
)  # fmt: skip
def test_what_a_processor_has_not_so_is_named(said: dict[str, Any], told: list[str]) -> None:
    assert other_pixels(said, PREPARES) == told


def test_settings_of_pictures_are_read_from_transformers_5_s_file_as_from_the_older_one(
    tmp_path: Path,
) -> None:
    def write_model(name: str, *, nested: bool) -> Path:
        folder = tiny_vision_model("qwen2_vl", tmp_path / name)
        said = json.loads((folder / "preprocessor_config.json").read_text()) | {
            "image_mean": [0.1, 0.3, 0.6],
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(said))
        if nested:
            (folder / "preprocessor_config.json").unlink()
            kept = json.loads((folder / "processor_config.json").read_text())
            (folder / "processor_config.json").write_text(json.dumps({**kept, "image_processor": said}))
        return folder

    def pixels(folder: Path) -> Any:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        media = VisionBench(folder).job("a", picture(60, 28, 1), "What?").media
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
        return media.gathered("pixel_values")

    older, newer = (pixels(write_model(name, nested=name == "newer")) for name in ("older", "newer"))
    assert np.array_equal(older, newer)
    assert not np.allclose(older, pixels(tiny_vision_model("qwen2_vl", tmp_path / "usual")))


def test_a_picture_is_refused_where_the_processor_leaves_a_field_out(tmp_path: Path) -> None:
    folder = tiny_vision_model("qwen2_vl", tmp_path / "m")
    said = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**said, "do_resize": False}))
    bench = VisionBench(folder)
    with pytest.raises(ServerError, match="leaves out do_resize") as caught:
        bench.job("a", picture(60, 28, 1), "What?")
    assert (caught.value.report.kind, caught.value.report.param) == ("unsupported", "messages[0].content[0]")
    assert bench.job("b", "What?").media is None


def test_a_filter_that_a_processor_has_in_its_code_is_held_against_the_folder_s() -> None:
    coded = type("Qwen3VLImageProcessor", (), {})()
    assert other_pixels({"resample": 0}, coded) == ["resample"]
    assert other_pixels({"resample": 3}, coded) == []
    read = SimpleNamespace(resample=2)
    assert other_pixels({"resample": 3}, read) == ["resample"]
    assert other_pixels({"resample": 2}, read) == other_pixels({"resample": 2}, SimpleNamespace()) == []


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        *[("image_mean", value, "image_mean is wrong") for value in ("x", True, {})],
        *[("do_resize", value, "do_resize is wrong") for value in (-1, [1], "x")],
        *[("size", value, "size is wrong") for value in (-1, [1], "x", {"height": 0})],
        ("resample", 9, "resample is wrong"),
        *[("sampling_rate", value, "sampling_rate is wrong") for value in (0, "16000", 22050.5)],
        *[
            (name, None, f"{name} is null")
            for name in ("patch_size", "image_mean", "rescale_factor", "resample", "size", "max_crops")
        ],
    ],
)
def test_a_field_of_another_type_is_named_with_its_file(
    field: str, value: Any, told: str, tmp_path: Path
) -> None:
    for file, said in (("preprocessor", {field: value}), ("processor", {"image_processor": {field: value}})):
        (tmp_path / f"{file}_config.json").write_text(json.dumps(said))
        with pytest.raises(ServerError, match=rf"^{file}_config\.json of the model .*{told}"):
            settings_of(tmp_path)


@pytest.mark.parametrize("field", ["do_pad", "do_resize"])
@pytest.mark.parametrize("value", [None, False])
def test_a_step_that_mllama_cannot_do_without_is_named(
    field: str, value: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mllama"}')
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({field: value}))
    with pytest.raises(ServerError, match=f"^preprocessor_config.json of .* never leaves out {field}"):
        settings_of(tmp_path)


def test_a_picture_without_a_size_has_that_of_its_pixels(tmp_path: Path) -> None:
    said = {"size": None, "max_pixels": 4096}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert settings_of(tmp_path) == {"max_pixels": 4096}


def test_minicpm_s_older_names_are_not_hidden_by_what_is_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    monkeypatch.setattr("pippin.engines.language.vision.preprocessor._usual_of", lambda folder: usual)
    (tmp_path / "preprocessor_config.json").write_text('{"norm_mean": [0.1, 0.2, 0.3]}')
    assert settings_of(tmp_path) == {"norm_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3}


def test_a_null_is_no_mistake_where_nothing_needs_the_field(tmp_path: Path) -> None:
    said = {"do_normalize": None, "image_mean": None, "do_resize": False, "resample": None, "crop_size": None}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert settings_of(tmp_path) == {"do_normalize": False, "do_resize": False}


def test_a_setting_that_a_processor_keeps_and_does_not_read_is_told() -> None:
    from mlx_vlm.models.internvl_chat.processor import InternVLImageProcessor
    from mlx_vlm.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMVImageProcessor

    for said in (
        {"do_normalize": False},
        {"rescale_factor": 0.5, "image_std": [0.2, 0.2, 0.2], "resample": 2},
    ):
        assert sorted(other_pixels(said, MiniCPMVImageProcessor(**said))) == sorted(said)
    assert other_pixels({"image_mean": [0.5, 0.5, 0.5], "resample": 3}, MiniCPMVImageProcessor()) == []
    clip = {"do_center_crop": True, "crop_size": 448, "size": 448, "image_mean": [0.485, 0.456, 0.406]}
    assert other_pixels(clip, InternVLImageProcessor()) == []  # as InternVL 2 is published
    assert other_pixels({"image_mean": [0.5, 0.5, 0.5]}, InternVLImageProcessor()) == ["image_mean"]
    other = {"size": {"height": 384, "width": 384}, "min_patches": 2, "max_patches": 6}
    assert other_pixels(other, InternVLImageProcessor()) == list(other)
    of_tiles = type("MllamaImageProcessorPil", (), {"max_image_tiles": 2})()
    assert other_pixels({"max_image_tiles": 2}, of_tiles) == ["max_image_tiles"]


def test_settings_that_are_in_a_class_s_code_are_held_against_the_folder_s() -> None:
    from mlx_vlm.models.hunyuan_vl.processing_hunyuan_vl import HunYuanVLImageProcessor
    from mlx_vlm.models.kimi_k25.processing_kimi_k25 import KimiK25ImageProcessor
    from mlx_vlm.models.lfm2_vl.processing_lfm2_vl import Lfm2VlNumpyImageProcessor
    from mlx_vlm.models.muse_spark.image_processing import ImageProcessor

    kimi = {
        "merge_size": 2,
        "max_patches": 16384,
        "size": {"max_height": 512, "max_width": 512},
        "resample": 3,
    }
    assert other_pixels(kimi, KimiK25ImageProcessor()) == []
    other = {
        "merge_size": 1,
        "max_patches": 4096,
        "size": {"max_height": 256, "max_width": 256},
        "resample": 2,
    }
    assert sorted(other_pixels(other, KimiK25ImageProcessor())) == sorted(other)
    spark = {"merge_size": 2, "temporal_patch_size": 2, "resample": 1}
    assert other_pixels(spark, ImageProcessor()) == []
    spark = {"merge_size": 1, "temporal_patch_size": 1, "resample": 3}
    assert sorted(other_pixels(spark, ImageProcessor())) == sorted(spark)
    # As published.
    assert other_pixels({"do_resize": False, "max_num_patches": 256}, Lfm2VlNumpyImageProcessor()) == []
    assert other_pixels({"resample": 1}, HunYuanVLImageProcessor()) == []


def test_step_3_7_s_processor_is_held_against_the_folder_s_settings(tmp_path: Path) -> None:
    processor: Any = type("Step3VLProcessor", (), {"mean": (0.48, 0.46, 0.41), "patch_size": 504})()
    said = {"image_mean": [0.48, 0.46, 0.41], "patch_size": 504, "size": {"height": 728, "width": 728}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert unprepared(settings_in(tmp_path), processor) == {"image": []}
    other = {"patch_size": 252, "image_mean": [0.5, 0.5, 0.5], "size": {"height": 364, "width": 364}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**other, "do_rescale": False}))
    assert set(unprepared(settings_in(tmp_path), processor)["image"]) == {*other, "do_rescale"}


@pytest.mark.parametrize(
    ("size", "count", "ends"),
    [
        ((728, 728), 0, None),
        ((1000, 600), 2, []),
        ((1600, 1100), 6, [2]),
        ((3300, 500), 7, []),
        ((907, 504), 2, []),
        ((505, 2500), 5, [0, 1, 2, 3]),
        ((20, 700), 0, None),
        ((900, 100), 9, []),
        ((60, 28), 2, []),
    ],
)
def test_step_3_7_s_pictures_are_cut_as_by_transformers(
    size: tuple[int, int], count: int, ends: list[int] | None
) -> None:
    _, windows, found = in_windows(Pictures.new("RGB", size))
    assert len(windows) == count
    assert (None if found is None else np.flatnonzero(found).tolist()) == ends


def test_a_window_of_step_3_7_ends_with_its_picture() -> None:
    whole, windows, _ = in_windows(Pictures.new("RGB", (1000, 300), "white"))
    assert whole.size == (1000, 300)
    assert {each.size for each in windows} == {(504, 300)}
    assert {each.getextrema() for each in windows} == {((255, 255),) * 3}


@pytest.mark.parametrize(
    ("size", "grid"),
    [((60, 28), [1, 4, 6]), ((3, 5), [1, 6, 4]), ((210, 9), [1, 2, 20]), ((1, 1), [1, 4, 4])],
)
def test_small_pictures_of_minimax_m3_vl_are_enlarged_as_by_transformers(
    size: tuple[int, int], grid: list[int]
) -> None:
    from mlx_vlm.models.minimax_m3_vl.processing_minimax_m3_vl import MiniMaxM3VLImageProcessor

    own = MiniMaxM3VLImageProcessor()
    resize_alike(SimpleNamespace(image_processor=own))
    assert own(images=[Pictures.new("RGB", size)])["image_grid_thw"].tolist() == [grid]


def test_small_pictures_of_minimax_m3_vl_are_enlarged_by_the_folder_s_filter() -> None:
    from mlx_vlm.models.minimax_m3_vl.processing_minimax_m3_vl import MiniMaxM3VLImageProcessor

    own = MiniMaxM3VLImageProcessor(resample=Resampling.NEAREST, do_normalize=False)
    resize_alike(SimpleNamespace(image_processor=own))
    shown = Pictures.fromarray(np.array([[[0, 0, 0], [255, 255, 255]]], np.uint8))
    assert np.unique(own(images=[shown])["pixel_values"]).tolist() == [0, 1]


def test_a_small_picture_of_muse_spark_is_one_token() -> None:
    from mlx_vlm.models.muse_spark.image_processing import ImageProcessor

    own = ImageProcessor()
    resize_alike(SimpleNamespace(image_processor=own))
    assert own.preprocess_image(np.zeros((5, 3, 3), np.uint8))[1] == 1


def test_lfm2_vl_splits_pictures_as_its_folder_says(tmp_path: Path) -> None:
    said = {"do_image_splitting": False, "max_tiles": 4, "image_mean": [0.5, 0.5, 0.5]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert splitting(settings_of(tmp_path), {"model_type": "lfm2_vl"}) == {
        "do_image_splitting": False,
        "max_tiles": 4,
    }
    assert splitting(settings_of(tmp_path), {"model_type": "qwen2_vl"}) == {}


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "gemma3", "idefics3"])
def test_fields_that_a_folder_leaves_out_are_what_transformers_takes(family: str, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    folder = tiny_vision_model(family, tmp_path / family)
    said = json.loads((folder / "preprocessor_config.json").read_text())
    kept = {name: value for name, value in said.items() if not name.startswith("image_")}
    kept["image_processor_type"] = said["image_processor_type"]
    (folder / "preprocessor_config.json").write_text(json.dumps(kept))
    shown = picture(60, 28, 1)
    own = AutoImageProcessor.from_pretrained(folder, backend="pil")
    with Pictures.open(io.BytesIO(shown)) as opened:
        expected = own(images=[opened.convert("RGB")], return_tensors="np")["pixel_values"]
    media = VisionBench(folder).job("a", shown, "What?").media
    assert media is not None
    np.testing.assert_allclose(media.gathered("pixel_values"), expected, atol=1e-6)


def test_videos_and_sound_are_held_against_transformers_5_s_file_too(tmp_path: Path) -> None:
    nested = {
        "image_processor": {"patch_size": 8},
        "video_processor": {"patch_size": 8, "do_resize": False, "max_frames": 16},
        "feature_extractor": {"sampling_rate": 24000, "hop_length": 160, "do_normalize": False},
    }
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    with in_older_files(tmp_path, settings_in(tmp_path)) as files:
        assert json.loads((files / "preprocessor_config.json").read_text()) == {"patch_size": 8}
        assert json.loads((files / "video_preprocessor_config.json").read_text()) == nested["video_processor"]
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(patch_size=8),
        video_processor=SimpleNamespace(patch_size=16, max_frames=16, image_mean=0.5),
        feature_extractor=SimpleNamespace(sampling_rate=16000, hop_length=160),
    )
    told = {"image": [], "video": ["patch_size", "do_resize"], "audio": ["sampling_rate"]}
    assert unprepared(settings_in(tmp_path), processor) == told


def test_sizes_that_a_processor_has_otherwise_are_told() -> None:
    own = SimpleNamespace(max_pixels=4096, patch_size=14, min_pixels=None)
    assert other_pixels({"max_pixels": 4096, "patch_size": 14, "min_pixels": 256, "merge_size": 2}, own) == []
    assert other_pixels({"max_pixels": 2048, "patch_size": 16}, own) == ["max_pixels", "patch_size"]


def test_a_size_of_which_a_processor_reads_one_side_is_told_where_it_is_not_square() -> None:
    for name, size in (
        ("FastVLMImageProcessor", {"height": 32, "width": 64}),
        ("InternVLImageProcessor", 32),
    ):
        own = type(name, (), {"size": size})()
        assert other_pixels({"size": {"height": 32, "width": 64}}, own) == ["size"]
    assert other_pixels({"size": {"height": 32, "width": 32}}, own) == []


def test_hunyuan_vl_resizes_as_transformers_does() -> None:
    from mlx_vlm.models.hunyuan_vl.processing_hunyuan_vl import HunYuanVLImageProcessor
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil

    own = HunYuanVLImageProcessor()
    resize_alike(SimpleNamespace(image_processor=own))
    shown = Pictures.open(io.BytesIO(picture(701, 533, 1)))
    [expected] = HunYuanVLImageProcessorPil()(images=[shown], return_tensors="np")["pixel_values"][None]
    np.testing.assert_allclose(own(images=[shown])["pixel_values"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            {"size": {"shortest_edge": 256, "longest_edge": 4096}},
            {"min_pixels": 256, "max_pixels": 4096, "size": {"shortest_edge": 256, "longest_edge": 4096}},
        ),
        (
            {"media_proc_cfg": {"patch_size": 8}},
            {"patch_size": 8, "media_proc_cfg": {"patch_size": 8}},
        ),
    ],
)
def test_settings_are_found_where_publishers_put_them(
    said: dict[str, Any], found: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert settings_of(tmp_path) == found


def test_numbers_that_contradict_the_encoder_are_told_before_a_picture_is_cut_by_them() -> None:
    nothing: dict[str, Any] = {"image": {}, "video": {}, "audio": {}}
    own = SimpleNamespace(image_grid_pinpoints=[[448, 448]], do_center_crop=True, crop_size={"height": 224})
    processor = SimpleNamespace(image_processor=own, patch_size=14, spatial_merge_size=2)
    said = {"processor": {"patch_size": 8, "spatial_merge_size": 2, "processor_class": "A"}, **nothing}

    def told(side: int, whole: dict[str, Any]) -> list[str]:
        config = {"model_type": "mistral3", "vision_config": {"image_size": side}}
        return unprepared({**nothing, "processor": whole}, processor, config)["image"]

    assert told(224, said["processor"]) == ["patch_size"]
    assert told(336, {}) == ["crop_size"]
    own.do_center_crop, own.size = None, {"height": 336, "width": 336}
    assert told(336, {}) == []
    assert told(224, {}) == ["size"]


def test_settings_of_films_are_those_of_transformers_where_a_folder_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava_onevision"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    found = settings_in(tmp_path)
    assert found["video"]["image_mean"] == [0.48145466, 0.4578275, 0.40821073]
    with in_older_files(tmp_path, found) as files:
        assert json.loads((files / "video_preprocessor_config.json").read_text()) == found["video"]
    for wrong in ({"fps": 0}, {"num_frames": None, "max_soft_tokens": 70}):
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(wrong))
        with pytest.raises(ServerError, match=f"its field {next(iter(wrong))} is"):
            settings_of(tmp_path, "video")
