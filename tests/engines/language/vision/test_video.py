"""Video: frames by rate and cap, answers as mlx-vlm gives them, and refusals."""

import io
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mlx_vlm.generate.video import resolve_video_inputs
from mlx_vlm.models.gemma4.processing_gemma4 import Gemma4VideoProcessor
from mlx_vlm.models.llava_onevision.processing_llava_onevision import LlavaOnevisionVideoProcessor
from mlx_vlm.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMVVideoProcessor
from mlx_vlm.models.qwen3_vl.processing_qwen3_vl import Qwen3VLVideoProcessor
from mlx_vlm.utils import load_processor
from PIL import Image as Pictures

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Inline, Message, Video
from pippin.core.errors import ServerError
from pippin.engines.base import NobodyWaitsError, holding, still_wanted
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision import video as video_module
from pippin.engines.language.vision.films.frames import as_frames, frame_rate
from pippin.engines.language.vision.films.published import prepare_as_published, rate_of
from pippin.engines.language.vision.preprocessor import settings_in, unprepared
from pippin.engines.language.vision.prompt_processing import PromptProcessor
from pippin.engines.language.vision.video import FrameRate, read_clip, sample
from tests.engines.language.vision import any_family
from tests.engines.language.vision.any_family import shrink, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

av = pytest.importorskip("av")
RATE = FrameRate(fps=2.0, least=4, most=768)


def video(
    frames: int,
    fps: int = 8,
    size: tuple[int, int] = (64, 48),
    format: str = "mp4",
    codec: str = "h264",
    shown: Callable[[int], npt.NDArray[np.uint8]] | None = None,
) -> bytes:
    """A film of a growing brightness, or of the pictures that are `shown`."""
    written = io.BytesIO()
    with av.open(written, "w", format=format) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            level = np.full((size[1], size[0], 3), 255 * number // max(frames - 1, 1), np.uint8)
            level = level if shown is None else shown(number)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(level, format="rgb24")))
        container.mux(stream.encode())
    return written.getvalue()


def test_frames_are_taken_at_the_rate_and_up_to_the_cap() -> None:
    film = video(40)
    clip = read_clip(film, RATE, "x")
    assert (len(clip.frames), clip.source_frames, clip.source_fps) == (10, 40, 8.0)
    assert clip.indices == [0, 4, 9, 13, 17, 22, 26, 30, 35, 39]
    levels = clip.frames.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(levels, [255 * index / 39 for index in clip.indices], atol=6)
    assert len(read_clip(film, FrameRate(fps=2.0, least=4, most=6), "x").frames) == 6
    assert len(read_clip(video(6), RATE, "x").frames) == 4
    assert len(read_clip(video(1), RATE, "x").frames) == 1


@pytest.mark.parametrize("data", [b"", b"no film", picture(20, 20, 1, "JPEG")[:100], video(8)[:300]])
def test_what_is_no_video_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(ServerError, match=r"messages\[0\]\.content\[0\]"):
        read_clip(data, RATE, "messages[0].content[0]")


def test_a_processor_that_takes_a_number_of_frames_gets_it_unless_a_request_has_a_rate() -> None:
    rate = rate_of(SimpleNamespace(video_processor=Gemma4VideoProcessor(num_frames=12)), "gemma4", {})
    film = video(40)
    assert len(read_clip(film, rate, "x").frames) == 12
    assert len(read_clip(film, rate.asked(1.0, None), "x").frames) == 5
    assert len(read_clip(film, rate.asked(None, 8), "x").frames) == 8


CHOSEN: list[tuple[str, Any, dict[str, Any], list[int]]] = [
    ("qwen3_vl", Qwen3VLVideoProcessor(), {}, [0, 5, 10, 14, 19]),
    ("qwen2_vl", Qwen3VLVideoProcessor(), {"do_sample_frames": True}, [0, 5, 10, 15]),
    ("qwen2_vl", Qwen3VLVideoProcessor(), {}, [0, 6, 13, 19]),  # as its publisher's code
    ("gemma4", Gemma4VideoProcessor(num_frames=5), {}, [0, 4, 8, 12, 16]),
    ("llava_onevision", LlavaOnevisionVideoProcessor(), {}, [0, 4, 8, 12, 16]),
    ("minicpmv4_6", MiniCPMVVideoProcessor(), {}, [0, 8, 16]),
    ("minicpmv4_6", MiniCPMVVideoProcessor(max_num_frames=2), {}, [0, 19]),
]


@pytest.mark.parametrize(("kind", "own", "said", "chosen"), CHOSEN)
def test_frames_of_a_film_are_those_that_transformers_chooses(
    kind: str, own: Any, said: dict[str, Any], chosen: list[int]
) -> None:
    rate = rate_of(SimpleNamespace(video_processor=own), kind, said)
    assert sample(video(20), rate, "x").indices == chosen
    assert len(sample(video(20), rate.asked(1.0, 2), "x").indices) == 2
    assert sample(video(1), rate, "x").indices == [0]


def test_positions_of_frames_count_time_in_qwen2_5_vl(tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model("qwen2_5_vl", tmp_path / "qwen2_5_vl"))
    job = bench.job("a", Video(Inline(video(9, 1))), "What happens?")
    assert job.media is not None
    own = job.media.placed[0]
    # Eight frames of nine seconds in four steps of 2.25 seconds: rounded down, after they are multiplied.
    assert own.medium.arrays["second_per_grid_ts"] == [2.25]
    positions = np.array(bench.engine.vision.model.positions(tuple(job.prompt), job.media).table)  # type: ignore[union-attr]
    first = own.positions[0]
    by_second = bench.model.inner.config.vision_config.tokens_per_second
    steps = [first + int(2.25 * by_second * step) for step in range(4)]
    assert sorted({*positions[0, 0, list(own.positions)].tolist()}) == steps
    after = own.positions[-1] + 1
    assert positions[:, 0, after].tolist() == [positions[:, 0, :after].max() + 1] * 3


FILMS = [(4, 3, 5), (5, 64, 48), (3, 64, 96), (7, 6, 60), (12, 700, 900)]
SIZES = {
    ("qwen2_vl", False): [(2, 12, 18), (3, 16, 12), (2, 16, 24), (4, 6, 44), (6, 20, 26)],
    ("qwen2_vl", True): [(2, 12, 18), (3, 16, 12), (2, 10, 16), (4, 6, 44), (6, 12, 14)],
    ("qwen3_vl", False): [(2, 6, 10), (3, 12, 8), (2, 10, 16), (4, 2, 20), (6, 6, 6)],
    ("qwen3_vl", True): [(2, 6, 10), (3, 16, 12), (2, 10, 16), (4, 2, 20), (6, 12, 14)],
}
"""What transformers makes of films of so many frames of such a height and width: patches in time, height and width."""


@pytest.mark.parametrize(("kind", "capped"), SIZES)
def test_films_are_as_large_as_in_transformers(kind: str, capped: bool) -> None:
    own = Qwen3VLVideoProcessor(patch_size=4, min_pixels=3000, max_pixels=9000)
    said = {"cap_pixels_per_frame": capped, "max_video_tokens": 30}
    prepare_as_published(SimpleNamespace(video_processor=own), kind, said)
    films = [np.zeros((count, 3, height, width), np.uint8) for count, height, width in FILMS]
    assert [tuple(grid) for grid in own(films)["video_grid_thw"].tolist()] == SIZES[kind, capped]


def test_labels_of_frames_tell_their_own_times_in_gemma4(tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model("gemma4", tmp_path / "gemma4"))
    job = bench.job("a", Video(Inline(video(20, 3)), max_frames=4), "What?")
    assert job.media is not None
    # Frames 0, 5, 10 and 15 at three a second. Evenly spread over 6.7 seconds, the last would be at 4.99.
    labels = re.findall(r"\d\d:\d\d", job.media.placed[0].medium.text)
    assert labels == ["00:00", "00:01", "00:03", "00:05"]


def test_frames_tell_their_times_in_minimax_m3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_family, "write_weights", lambda *_: None)
    folder = write("minimax_m3_vl", FAMILIES["minimax_m3_vl"], tmp_path / "minimax_m3_vl")
    tokenizer = Tokenizer.load(folder)
    made = PromptProcessor(folder, ModelOptions(), tokenizer).prompt(
        "]<]video[>[", [("x", Video(Inline(video(9, 2))))]
    )
    # Two frames share a time: that of the first.
    assert re.findall(r"[\d.]+ seconds", tokenizer.decode(made.ids[0].tolist())) == [
        "0.0 seconds",
        "2.5 seconds",
    ]


def test_films_of_qwen3_omni_have_limits_of_their_own() -> None:
    own = Qwen3VLVideoProcessor(patch_size=16, min_pixels=1024, max_pixels=4096)
    prepare_as_published(SimpleNamespace(video_processor=own), "qwen3_omni_moe", {})
    assert own([np.zeros((2, 3, 48, 64), np.uint8)])["video_grid_thw"].tolist() == [[1, 20, 28]]


@pytest.mark.parametrize(
    ("made", "said", "told"),
    [
        (Qwen3VLVideoProcessor, {"num_frames": 6}, ["num_frames"]),
        (Qwen3VLVideoProcessor, {"num_frames": None, "resample": 3}, []),
        (Qwen3VLVideoProcessor, {"resample": 2}, ["resample"]),
        (Gemma4VideoProcessor, {"num_frames": 6, "image_mean": [0, 0, 0], "resample": 3}, []),
        (
            Gemma4VideoProcessor,
            {"image_mean": [0.1, 0.2, 0.3], "do_resize": False},
            ["do_resize", "image_mean"],
        ),
    ],
)
def test_what_is_done_to_frames_is_done_as_said_or_told(
    made: Any, said: Any, told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(said))
    own = made(**said)
    assert unprepared(settings_in(tmp_path), SimpleNamespace(video_processor=own))["video"] == told


def turned(film: bytes, *matrix: int) -> bytes:
    """A film that is to be shown turned, by the matrix of its track's header."""
    place = film.index(b"tkhd") + 44
    numbers = struct.pack(
        ">9i", *(part << (30 if index % 3 == 2 else 16) for index, part in enumerate(matrix))
    )
    return film[:place] + numbers + film[place + 36 :]


@pytest.mark.parametrize(
    ("matrix", "turns"), [((0, 1, 0, -1, 0, 0, 0, 0, 1), -1), ((-1, 0, 0, 0, -1, 0, 0, 0, 1), 2),
                          ((0, -1, 0, 1, 0, 0, 0, 0, 1), 1)]
)  # fmt: skip
def test_a_film_that_was_taken_on_its_side_is_shown_upright(matrix: tuple[int, ...], turns: int) -> None:
    corner = np.zeros((48, 64, 3), np.uint8)
    corner[:16, :16] = 255
    film = video(4, shown=lambda _: corner)
    upright = read_clip(film, RATE, "x").frames
    np.testing.assert_array_equal(
        read_clip(turned(film, *matrix), RATE, "x").frames, np.rot90(upright, turns, (2, 3))
    )


def noise(number: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("format", "codec"), [("mp4", "mpeg4"), ("matroska", "h264"), ("mpegts", "mpeg2video")]
)
def test_of_a_damaged_film_is_shown_what_can_be_decoded(format: str, codec: str) -> None:
    whole, chance = video(40, format=format, codec=codec, shown=noise), random.Random(1)
    place = len(whole) // 2
    for size in (4, 300, 3000):
        damaged = whole[:place] + chance.randbytes(size) + whole[place + size :]
        assert len(read_clip(damaged, RATE, "x").frames) >= 4


def test_a_film_whose_codec_is_unknown_is_refused() -> None:
    with pytest.raises(ServerError, match="can't be read as a video"):
        read_clip(video(8).replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzz"), RATE, "x")


def test_videos_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    film = video(20)
    monkeypatch.setattr(video_module, "MOST_CLIP_PIXELS", 4 * 32 * 24)
    assert read_clip(film, RATE, "x").frames.shape == (4, 3, 24, 32)
    monkeypatch.setattr(video_module, "MOST_SOURCE_FRAMES", 19)
    with pytest.raises(ServerError, match="more than 19 frames"):
        read_clip(film, RATE, "x")
    monkeypatch.setattr(video_module, "MOST_FRAME_PIXELS", 64 * 47)
    with pytest.raises(ServerError, match="64 x 48 pixels"):
        read_clip(film, RATE, "x")


def test_a_video_that_takes_too_long_to_decode_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_module, "MOST_SECONDS", 0.0)
    with pytest.raises(ServerError, match=r"'content\[0\]' takes more than 0 seconds to decode"):
        read_clip(video(20), RATE, "content[0]")


def test_no_frame_is_decoded_for_a_client_who_has_left() -> None:
    film, looks = video(20), iter([True] * 30 + [False] * 100)
    with holding(still_wanted, lambda: next(looks)), pytest.raises(NobodyWaitsError):
        read_clip(film, RATE, "x")
    assert len(list(looks)) == 99, "it was decoded on"


TINY_WATCHING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma4", "gemma4_unified")
WATCHING = (
    *("glm5_next", "indic_ocr", "llava_onevision", "mage_vl", "mimo_v2", "minimax_m3_vl", "muse_spark"),
    *("nemotron_h_nano_omni", "prism_hadamard_qwen35", "qwen3_5_moe", "qwen3_omni_moe"),
    *("qwen3_vl_moe", "qwen4_exp"),
)
WITHOUT_BATCHES = ("minimax_m3_vl", "qwen3_omni_moe")
ALIKE = (
    "gemma4_unified",
    "qwen3_omni_moe",
    "qwen4_exp",
)  # tiny random models that may say the same of both films in mlx-vlm, too
QUICK = ("qwen2_vl", "qwen3_vl", "mage_vl")


def opened(family: str, folder: Path, patch: pytest.MonkeyPatch) -> VisionBench:
    if family in FAMILIES:
        shrink(FAMILIES[family], patch)
        return VisionBench(write(family, FAMILIES[family], folder / family))
    return VisionBench(tiny_vision_model(family, folder / family))


def long_but(quick: tuple[str, ...], names: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in names]


@pytest.mark.parametrize("family", long_but(QUICK, (*TINY_WATCHING, *WATCHING)))
def test_a_video_is_answered_as_mlx_vlm_does(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(family, tmp_path, monkeypatch)
    assert bench.preparer.info.capabilities.video
    films = (video(24), video(60, size=(48, 64)))
    processor = load_processor(bench.folder, eos_token_ids=256, trust_remote_code=False)
    # The frames of Qwen3-Omni are large, whatever the folder says.
    most = 2 if family == "qwen3_omni_moe" else None
    rate = rate_of(processor, family.removesuffix("-scaled"), {}).asked(None, most)
    expected = [bench.judged_video("What happens?", read_clip(film, rate, "x")) for film in films]
    jobs = [
        bench.job(str(number), Video(Inline(film), max_frames=most), "What happens?")
        for number, film in enumerate(films)
    ]
    assert [bench.alone(job) for job in jobs] == expected
    assert expected[0] != expected[1] or family in ALIKE
    # In company, or one after the other with a text between them, and once more from caches if there are any.
    engine = bench.new_engine()
    for _ in range(2):
        together, _ = bench.run(jobs[0], bench.job("text", "Hello"), jobs[1], engine=engine)
        assert [together[job.id] for job in jobs] == expected
    if family not in WITHOUT_BATCHES:
        assert engine.vision.encoded == 2


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma4"])
def test_a_video_beside_a_picture_is_answered_together_as_alone(family: str, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    film = video(24)
    shown = bench.job("b", picture(60, 28, 1), Video(Inline(film)), "Is it the same?")
    together, _ = bench.run(
        bench.job("a", Video(Inline(film)), "What?"),
        bench.job("c", "Hello"),
        shown,
        engine=bench.new_engine(),
    )
    assert together["b"] == bench.alone(shown)
    fewer = bench.job("d", Video(Inline(film), max_frames=2), "What happens?")
    assert fewer.media is not None
    arrays = fewer.media.placed[0].medium.arrays
    if family == "gemma4":
        assert list(arrays["num_frames_per_video"]) == [2]
    else:
        assert arrays["video_grid_thw"].tolist()[0][0] == 1


def frames_of(*films: bytes, **asked: Any) -> list[bytes]:
    """The pictures that are shown of videos."""
    messages = (Message("user", tuple(Video(Inline(film), **asked) for film in films)),)
    rate = frame_rate(object())
    assert rate is not None
    return [part.source.data for part in as_frames(messages, rate)[0].parts]  # type: ignore[union-attr]


@pytest.mark.parametrize("lengths", [(24,), (200,), (24, 100)])
def test_a_video_becomes_the_pictures_that_mlx_vlm_s_server_shows(
    lengths: tuple[int, ...], tmp_path: Path
) -> None:
    films = [video(length) for length in lengths]
    paths = [tmp_path / f"{number}.mp4" for number in range(len(films))]
    for path, film in zip(paths, films, strict=True):
        path.write_bytes(film)
    expected = resolve_video_inputs(object(), [str(path) for path in paths]).images
    levels = [np.asarray(Pictures.open(io.BytesIO(frame))).mean() for frame in frames_of(*films)]
    np.testing.assert_allclose(levels, [np.asarray(frame).mean() for frame in expected], atol=3)
    assert len(levels) <= 16
    assert len(frames_of(films[0], max_frames=2)) == 2


SHOWN_IN_FRAMES = (
    *("aya_vision", "fastvlm", "gemma3", "idefics2", "idefics3", "kimi_k25", "kimi_k3", "lfm2_vl", "llama4"),
    *("llava", "locateanything", "minicpmo", "mistral3", "muse_glimmer", "pixtral", "unlimited_ocr"),
)


@pytest.mark.parametrize("family", long_but(("gemma3", "idefics2"), SHOWN_IN_FRAMES))
def test_a_model_of_pictures_is_shown_the_frames_of_a_video(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(family, tmp_path, monkeypatch)
    assert bench.preparer.info.capabilities.video
    film = video(24)
    job = bench.job("a", Video(Inline(film)), "What?")
    assert bench.alone(job) == bench.judged("What?", frames_of(film))
    with pytest.raises(ServerError) as caught:
        bench.job("b", picture(8, 8), Video(Inline(film[:300])), "What?")
    assert caught.value.report.param == "messages[0].content[1]"


@pytest.mark.long
def test_glm4v_sees_each_picture_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened("glm4v", tmp_path, monkeypatch)
    for frames in (frames_of(video(24), max_frames=3), frames_of(video(24))):
        assert bench.alone(bench.job(f"{len(frames)}", *frames, "What?")) == bench.judged("What?", frames)
    assert len(frames) > 3


def test_pictures_whose_positions_a_model_cannot_give_refuse_their_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened("glm_ocr", tmp_path, monkeypatch)
    with pytest.raises(ServerError, match="can't take this set of media"):
        bench.run(bench.job("a", Video(Inline(video(24))), "What?"))
    assert bench.run(bench.job("b", picture(60, 28, 1), "What?"))[0]["b"]
