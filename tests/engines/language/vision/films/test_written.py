"""Films of SmolVLM, GLM-4V and InternVL are chosen, prepared and written as transformers does.

The numbers are those of transformers 5.23 on torch, of the same settings, frames and times.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mlx_vlm.utils import VideoMetadata

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Inline, MediaPart, Video
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.films.written import WrittenFilms, films_of, in_words, lost_by
from pippin.engines.language.vision.processing import MediaProcessor
from pippin.engines.language.vision.prompt_processing import PromptProcessor
from tests.engines.language.vision import any_family, tiny_vision_models
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_video import long_but, opened, video
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model

pytest.importorskip("av")
SAID: dict[str, dict[str, Any]] = {
    "smolvlm": {
        "video_sampling": {"max_frames": 64, "fps": 1, "video_size": {"longest_edge": 96}},
        "size": {"longest_edge": 64},
        "max_image_size": {"longest_edge": 32},
    },
    "glm4v": {"patch_size": 8, "min_pixels": 256, "max_pixels": 4096},
    "internvl": {"num_frames": 4},
}


def settings(video: dict[str, Any], **whole: Any) -> dict[str, dict[str, Any]]:
    return {"processor": whole, "image": {}, "video": video, "audio": {}}


def films(kind: str) -> Any:
    found = films_of(kind, settings(SAID[kind]))
    assert isinstance(found, WrittenFilms)
    return found


CHOSEN = {  # of so many frames at such a rate: how many, the first, the last, and their sum; of InternVL all
    (5, 2): ([2, 0, 4, 4], [6, 0, 4, 14], [0, 1, 3, 4]),
    (9, 2): ([4, 0, 8, 15], [10, 0, 8, 44], [1, 3, 5, 7]),
    (40, 25): ([2, 0, 39, 39], [4, 0, 25, 63], [5, 15, 25, 35]),
    (3001, 30): ([64, 30, 2971, 96001], [200, 0, 2985, 298500], [375, 1125, 1875, 2625]),
    (400, 1): ([64, 1, 399, 12769], [400, 0, 399, 79800], [50, 150, 250, 350]),
    (20000, 29.97): ([64, 29, 19970, 639938], [600, 0, 19999, 6000298], [2500, 7500, 12500, 17500]),
}


@pytest.mark.parametrize("film", CHOSEN)
def test_frames_are_chosen_as_in_transformers(film: tuple[int, float]) -> None:
    told = VideoMetadata(film[0], film[1], [], duration=film[0] / film[1])
    found = []
    for kind in SAID:
        rate = films(kind).rate
        found.append(rate.sampler(told, fps=min(rate.fps, 60.0), max_frames=rate.most))
        assert len(rate.sampler(told, fps=1.0, max_frames=2)) <= 2
    smol, glm, intern = found
    sums = [[len(each), each[0], each[-1], sum(each)] for each in (smol, glm)]
    assert (*sums, intern) == CHOSEN[film]


def gradients(count: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    t, channel, y, x = np.indices((count, 3, height, width))
    return ((y * 2 * (channel + 1) + x * 2 + t * 11) % 256).astype(np.uint8)


MADE = [  # the mean of each frame, and of a pixel of the last
    ("smolvlm", 5, [0, 4], [-0.3333, 0.0095], [-0.4196, -0.3647, -0.302]),
    ("smolvlm", 9, [0, 2, 5, 8], [-0.2313, -0.1096, 0.059, 0.161], [-0.098, 0.0039, 0.098]),
    ("internvl", 5, [0, 1, 3, 4], [-0.5061, -0.3152, 0.0666, 0.2528], [-0.8507, -0.6001, -0.2532]),
    ("internvl", 9, [1, 3, 5, 7], [-0.1361, 0.1142, 0.3576, 0.5391], [-0.3541, -0.0224, 0.4265]),
]
PROCESSOR = SimpleNamespace(
    image_seq_len=1, image_token="<i>", fake_image_token="<f>", global_image_token="<g>"
)


@pytest.mark.parametrize(("kind", "count", "chosen", "means", "last"), MADE)
def test_pixels_of_frames_are_those_of_transformers(
    kind: str, count: int, chosen: list[int], means: list[float], last: list[float]
) -> None:
    frames = gradients(count, *((24, 40) if count == 5 else (40, 24)))[chosen]
    if kind == "internvl":
        shown = films(kind).tiles(frames, 32)
        pixels = films(kind).normal(np.stack([np.asarray(each).transpose(2, 0, 1) for each in shown]))
    else:
        made = films(kind).written(PROCESSOR, frames, VideoMetadata(count, 2, chosen))[1]
        [pixels], [mask] = made["pixel_values"], made["pixel_attention_mask"]
        assert mask.all()
        assert mask.shape == (len(chosen), 32, 32)
    np.testing.assert_allclose(pixels.mean((1, 2, 3)), means, atol=2e-3)
    np.testing.assert_allclose(pixels[-1, :, 5, 9], last, atol=0.02)


def test_smolvlm_is_told_of_a_film_and_of_the_time_of_each_frame() -> None:
    text, _ = films("smolvlm").written(PROCESSOR, gradients(4, 40, 24), VideoMetadata(9, 2, [0, 2, 5, 8]))
    assert text == (
        "You are provided the following series of four frames from a 0:00:04 [H:MM:SS] video.\n\n"
        "Frame from 00:00:<f><g><i><f>\nFrame from 00:01:<f><g><i><f>\nFrame from 00:02:<f><g><i><f>\n"
        "Frame from 00:04:<f><g><i><f>\n\n"
    )
    numbers = [in_words(number) for number in (0, 13, 20, 64, 100, 121)]
    assert numbers == [
        "zero",
        "thirteen",
        "twenty",
        "sixty-four",
        "one hundred",
        "one hundred and twenty-one",
    ]


PAIRS = [
    (5, [0, 1, 2, 3, 4, 4], 2, [[1, 2, 4]] * 3, -0.0622, [-0.5514, -0.0696, -0.0259, 0.6942, 0.7392, 1.2358]),
    (9, [*range(9), 8], 1, [[1, 2, 2]] * 5, 0.2011, [-0.5076, 0.2077, 0.2515, 1.3995, 1.4446, -1.1389]),
]


@pytest.mark.parametrize(("count", "chosen", "each", "grid", "mean", "some"), PAIRS)
def test_glm4v_sees_pairs_of_frames_with_the_time_behind_each(
    count: int, chosen: list[int], each: int, grid: list[list[int]], mean: float, some: list[float]
) -> None:
    frames = gradients(count, *((24, 40) if count == 5 else (40, 24)))[chosen]
    text, made = films("glm4v").written(PROCESSOR, frames, VideoMetadata(count, 2, chosen))
    pairs = [f"<|begin_of_image|>{'<i>' * each}<|end_of_image|>{second}" for second in range(len(grid))]
    assert text == "".join(pairs)
    assert made["image_grid_thw"].tolist() == grid
    assert made["pixel_values"].mean() == pytest.approx(mean, abs=2e-3)
    np.testing.assert_allclose(made["pixel_values"][7, ::61][:6], some, atol=0.02)


MEDIA: list[tuple[str, MediaPart]] = [
    ("a", Image(Inline(picture(20, 20, 1)))),
    ("b", Video(Inline(video(9, 2)))),
    ("c", Image(Inline(picture(20, 20, 2)))),
]
BETWEEN = {
    "smolvlm": ("<image>{}<image>!", "You are .*<image><fake_token_around_image>\n\n"),
    "glm4v": (
        "<|begin_of_image|><|image|><|end_of_image|>{}<|begin_of_video|><|video|><|end_of_video|>"
        "<|begin_of_image|><|image|><|end_of_image|>!",
        r"<\|begin_of_video\|>.*4<\|end_of_video\|>",
    ),
    "internvl": (
        "<IMG_CONTEXT>{}<IMG_CONTEXT><IMG_CONTEXT>!",
        "Frame1: <img>.*\nFrame9: <img>(<IMG_CONTEXT>){4}</img>",
    ),
}


@pytest.mark.parametrize("family", BETWEEN)
def test_a_film_keeps_its_place_among_pictures(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(any_family, "write_weights", lambda *_: None)
    monkeypatch.setattr(tiny_vision_models, "_write_weights", lambda *_: None)
    folder = tmp_path / family
    if family == "smolvlm":
        tiny_vision_model(family, folder)
    else:
        write(family, FAMILIES[family], folder)
    prompt, pattern = BETWEEN[family]
    tokenizer = Tokenizer.load(folder)
    if family == "internvl":
        made = PromptProcessor(folder, ModelOptions(), tokenizer).prompt(prompt.format("film:"), MEDIA)
        text = tokenizer.decode(made.ids[0].tolist())
    else:
        processor = MediaProcessor(folder, ModelOptions(), tokenizer)
        processor.try_modalities()
        rendered = prompt if family == "glm4v" else prompt.replace("{}", "{}<image>")
        text, media = processor.expanded(lambda: rendered.format("film:"), MEDIA, None)
        assert [medium.modality for medium in media] == ["image", "video", "image"]
    parts = re.fullmatch(f"(.*)film:({pattern})(.*)!", text, re.DOTALL)
    assert parts is not None, text
    assert parts[1] == parts[parts.re.groups]


LOST = {
    "smolvlm": ["do_resize", "do_center_crop"],
    "internvl": ["do_resize", "do_center_crop", "image_mean"],
    "internvl_chat": [],  # a file that its publisher's code does not read
}


@pytest.mark.parametrize("kind", LOST)
def test_what_films_are_not_prepared_by_is_told(kind: str) -> None:
    found = films_of(kind, settings({"do_resize": False, "image_mean": [0.1] * 3, "do_center_crop": True}))
    assert found is not None
    assert lost_by(found)["video"] == LOST[kind]


CHOSEN_46 = {
    (9, 2): [10, 0, 8, 44],
    (40, 25): [10, 0, 25, 134],
    (3001, 30): [200, 0, 2985, 298500],
    (400, 1): [400, 0, 399, 79800],
    (20000, 29.97): [640, 0, 19999, 6399361],
}


@pytest.mark.parametrize("film", CHOSEN_46)
def test_films_of_glm_4_6v_have_rates_and_words_of_their_own(film: tuple[int, float]) -> None:
    found: Any = films_of("glm4v", settings(SAID["glm4v"], processor_class="Glm46VProcessor"))
    told = VideoMetadata(film[0], film[1], [], duration=film[0] / film[1])
    chosen = found.rate.sampler(told, fps=60.0, max_frames=640)
    assert [len(chosen), chosen[0], chosen[-1], sum(chosen)] == CHOSEN_46[film]
    assert len(found.rate.sampler(told, fps=1.0, max_frames=2)) == 2
    text, _ = found.written(PROCESSOR, gradients(4, 40, 24), VideoMetadata(9, 4, [0, 2, 5, 8]))
    assert re.findall(r"[\d.]+ seconds", text) == ["0.0 seconds", "1.2 seconds"]


def test_films_of_idefics_are_shown_as_pictures() -> None:
    assert films_of("idefics3", settings({})) is None


@pytest.mark.parametrize(
    "family", long_but((), ("smolvlm", "glm4v", "glm4v_moe", "internvl", "internvl_chat"))
)
def test_a_written_film_is_answered(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened(family, tmp_path, monkeypatch)
    assert bench.preparer.media.modalities == {"image", "video"}
    job = bench.job("a", picture(20, 20, 1), Video(Inline(video(9, 2))), "What?")
    assert bench.run(job)[0]["a"] == bench.alone(job)
