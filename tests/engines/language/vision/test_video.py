"""Video: frames by rate and cap, answers as mlx-vlm gives them, and refusals."""

import io
from pathlib import Path

import numpy as np
import pytest

from pippin.core.conversation import Inline, Video
from pippin.core.errors import ServerError
from pippin.engines.language.vision import video as video_module
from pippin.engines.language.vision.video import FrameRate, read_clip
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

av = pytest.importorskip("av")
RATE = FrameRate(fps=2.0, least=4, most=768)


def video(
    frames: int, fps: int = 8, size: tuple[int, int] = (64, 48), format: str = "mp4", codec: str = "h264"
) -> bytes:
    """A film of a growing brightness."""
    written = io.BytesIO()
    with av.open(written, "w", format=format) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            level = np.full((size[1], size[0], 3), 255 * number // max(frames - 1, 1), np.uint8)
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


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma4"])
def test_a_video_is_answered_as_mlx_vlm_does(family: str, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    assert bench.preparer.info.capabilities.video
    film = video(24)
    clip = read_clip(film, RATE, "x")
    expected = bench.judged_video("What happens?", clip)
    job = bench.job("a", Video(Inline(film)), "What happens?")
    assert bench.alone(job) == expected
    engine = bench.new_engine()
    shown = bench.job("b", picture(60, 28, 1), Video(Inline(film)), "Is it the same?")
    together, _ = bench.run(job, bench.job("c", "Hello"), shown, engine=engine)
    assert together["a"] == expected
    assert together["b"] == bench.alone(shown)
    assert engine.vision is not None
    assert engine.vision.encoded == 2
    fewer = bench.job("d", Video(Inline(film), max_frames=2), "What happens?")
    assert fewer.media is not None
    arrays = fewer.media.placed[0].medium.arrays
    if family == "gemma4":
        assert list(arrays["num_frames_per_video"]) == [2]
    else:
        assert arrays["video_grid_thw"].tolist()[0][0] == 1
