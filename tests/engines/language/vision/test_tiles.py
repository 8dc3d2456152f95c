"""Llama 4's pictures as tiles, as transformers cuts them, and what mlx-vlm leaves out of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mlx_vlm.utils import load_processor
from PIL import Image

from pippin.engines.language.vision.tiles import TileProcessor, best_canvas, canvases
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_any_family import import_torchvision
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench

HALF = np.full(3, 0.5, np.float32)
OWN = SimpleNamespace(max_patches=16, size=336, image_mean=HALF, image_std=HALF)


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
    left_is_white = Image.new("L", (672, 300))
    left_is_white.paste(255, (0, 0, 336, 300))
    found = TileProcessor(OWN)([left_is_white, Image.new("RGB", (20, 20))])
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
        shown = Image.linear_gradient("L").rotate(30).resize((width, height)).convert("RGB")
        ours = TileProcessor(OWN)([shown])
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
    found = theirs(text=["<|image|>"], images=[Image.new("RGB", (120, 28))])
    patches = int((found["input_ids"] == bench.preparer.tokenizer.single("<|patch|>")).sum().item())
    assert patches == (len(found["pixel_values"]) + 1) * features
