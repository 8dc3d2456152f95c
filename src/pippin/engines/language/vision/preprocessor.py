"""What a model's folder says of how pictures are prepared, and what its family's processor leaves out of that."""

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL.Image import Image, Resampling

from pippin.core.published import object_in
from pippin.engines.refusals import refused

FILE = "preprocessor_config.json"

PIXELS: dict[str, Any] = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    "do_center_crop": False,
    "rescale_factor": 1 / 255,
    **dict.fromkeys(("image_mean", "image_std", "resample")),
}
"""Fields that decide the pixels of pictures, and what a processor does without a field of that name; None where that
is not known."""

SIZES = ("min_pixels", "max_pixels", "patch_size", "merge_size", "temporal_patch_size")
"""Whole numbers that decide how large pictures are and how they are cut; a processor has those that it knows."""

FILTERS = {
    **dict.fromkeys(("Gemma4", "Glm46V", "KimiK25", "Phi3V", "Qwen3VL"), 3),
    "HunYuanVL": 1,  # as published files say; see `resize_alike`
    "TileProcessor": 2,
}
"""Pillow's numbers of the filters that `...ImageProcessor` have in their code, whatever `resample` says."""


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of pictures, as transformers reads them: those in processor_config.json come first. Limits of pixels
    that transformers 5 writes as a size are there under their own names too, and settings that Kimi nests as others."""
    nested = object_in(folder / "processor_config.json").get("image_processor")
    said = nested if isinstance(nested, dict) else object_in(folder / FILE)
    if isinstance(size := said.get("size"), dict) and size.keys() >= {"shortest_edge", "longest_edge"}:
        said = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"], **said}
    inner = said.get("media_proc_cfg")
    return {**inner, **said} if isinstance(inner, dict) else said


@contextmanager
def in_older_files(folder: Path) -> Iterator[Path]:
    """A folder of the same files with the settings of pictures in a file of their own, where some families of mlx-vlm
    look for them. The model's own folder is not written."""
    said = settings_of(folder)
    if said == object_in(folder / FILE):
        yield folder
        return
    with TemporaryDirectory() as made:
        for path in folder.iterdir():
            if path.name != FILE:
                (Path(made) / path.name).symlink_to(path.resolve())
        (Path(made) / FILE).write_text(json.dumps(said), "utf-8")
        yield Path(made)


def resize_alike(processor: Any) -> None:
    """Have HunYuanVL's processor resize by the bicubic filter, as its publisher's and transformers do whatever the
    published files say; mlx-vlm's takes the bilinear one."""
    own: Any = getattr(processor, "image_processor", None)
    if type(own).__name__ != "HunYuanVLImageProcessor" or not own.do_resize:
        return
    from mlx_vlm.models.hunyuan_vl.processing_hunyuan_vl import smart_resize

    prepare, factor = own._preprocess_single, own.patch_size * own.merge_size

    def resized(picture: Image) -> Any:
        height, width = smart_resize(picture.height, picture.width, factor, own.min_pixels, own.max_pixels)
        return prepare(picture.convert("RGB").resize((width, height), Resampling.BICUBIC))

    own._preprocess_single = resized


def unprepared(folder: Path, processor: Any) -> list[str]:
    """The fields of a folder's settings that its family's processor leaves out."""
    own = getattr(processor, "image_processor", None)
    return [] if own is None else other_pixels(settings_of(folder), own)


def refuse_unprepared(fields: list[str], param: str) -> None:
    """Raises `ServerError` naming `param` for a picture where a processor leaves `fields` of its folder out."""
    if fields:
        raise refused(
            param,
            f"can't be prepared as the model's {FILE} says: its processor leaves out {', '.join(fields)}. Leave the "
            "picture out, or choose another model.",
            "unsupported",
        )


def other_pixels(said: Mapping[str, Any], own: Any) -> list[str]:
    """The fields of `PIXELS` that the processor of pictures does not have so."""
    asked = {name: said[name] for name in PIXELS if said.get(name) is not None}
    held = {name: inspect.getattr_static(own, name, PIXELS[name]) for name in asked}
    kinds = [kind.__name__.removesuffix("ImageProcessor") for kind in type(own).__mro__]
    coded = [FILTERS[kind] for kind in kinds if kind in FILTERS]
    held["resample"] = coded[0] if coded else held.get("resample")
    if held["resample"] is None:  # a filter that is not known
        asked.pop("resample", None)
    both = ((name, said.get(name), inspect.getattr_static(own, name, None)) for name in SIZES)
    sizes = [
        name for name, one, other in both if isinstance(one, int) and isinstance(other, int) and one != other
    ]
    return sizes + [
        name for name in asked if held[name] is None or not np.allclose(asked[name], held[name], atol=1e-6)
    ]
