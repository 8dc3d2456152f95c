"""What a folder says of the preparation of pictures, and the processor that runs does not do, is told."""

from types import SimpleNamespace
from typing import Any

import pytest

from pippin.engines.language.vision.processing import left_out

OWN = SimpleNamespace(
    size={"height": 448, "width": 448}, image_mean=(0.5, 0.5, 0.5), resample=3, min_pixels=64, do_resize=True
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"size": 448, "image_mean": [0.5, 0.5, 0.5], "resample": 3, "do_resize": True}, []),
        ({"size": {"shortest_edge": 336}}, ["size"]),
        ({"image_mean": [0.48, 0.46, 0.41], "resample": 2}, ["resample", "image_mean"]),
        ({"do_resize": False}, ["do_resize"]),
        ({"rescale_factor": 0.00392156862745098, "do_rescale": True, "do_normalize": True}, []),
        ({"rescale_factor": 0.0078, "do_normalize": False}, ["do_normalize", "rescale_factor"]),
        ({"max_pixels": 1 << 20, "min_pixels": None, "image_processor_type": "X"}, ["max_pixels"]),
    ],
)  # fmt: skip
def test_what_a_processor_has_not_so_is_named(said: dict[str, Any], told: list[str]) -> None:
    assert left_out(said, OWN) == told
