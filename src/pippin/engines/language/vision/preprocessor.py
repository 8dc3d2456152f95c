"""What a model's folder says of how pictures are prepared, and what its family's processor leaves out of that."""

import ast
import inspect
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import getattr_static
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from PIL.Image import Image, Resampling

from pippin.core.published import broken, object_in, typed
from pippin.engines.language.kept import files_of, kept
from pippin.engines.language.vision.media import Modality

FILE = "preprocessor_config.json"

PIXELS: dict[str, Any] = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    **dict.fromkeys(("do_center_crop", "resize_to_max_canvas"), False),
    "rescale_factor": 1 / 255,
    **dict.fromkeys(("image_mean", "image_std", "resample", "max_image_tiles")),
}
"""Fields that decide the pixels of pictures, and what a processor does without a field of that name; None where that
is not known."""

NEEDED = {
    **dict.fromkeys(("patch_size", "merge_size", "temporal_patch_size"), None),
    **dict.fromkeys(("image_mean", "image_std"), "do_normalize"),
    "rescale_factor": "do_rescale",
    **dict.fromkeys(("resample", "size"), "do_resize"),
    "crop_size": "do_center_crop",
    **dict.fromkeys(("max_image_size", "image_grid_pinpoints", "min_patches", "max_patches", "max_crops")),
    **dict.fromkeys(("slice_mode", "max_slice_nums", "scale_resolution", "overlap_margins", "pooling_size")),
    **dict.fromkeys(("downsample_factor", "encoder_patch_size", "max_pixels_tolerance", "max_image_tiles")),
    **dict.fromkeys(("min_image_tokens", "max_image_tokens", "min_tiles", "max_tiles", "max_soft_tokens")),
}
"""Fields that may not be null, unless the step that needs them is off."""

SIZED = {"max_pixels", "max_image_tokens", "scale_resolution"}
"""Fields that say how large pictures are where their size is null."""

SIZES = ("min_pixels", "max_pixels", *list(NEEDED)[:3])
"""Whole numbers that decide how large pictures are and how they are cut; a processor has those that it knows."""

Length = Annotated[int, Meta(ge=1)]
Lengths = Length | Annotated[list[Length], Meta(min_length=2, max_length=2)] | dict[str, Length | None]

TYPES: dict[str, Any] = {
    **dict.fromkeys(("image_mean", "image_std"), float | list[float]),
    **dict.fromkeys(("rescale_factor", "fps"), float),
    **dict.fromkeys(("size", "crop_size", "pad_size", "patch_size"), Lengths),
    **dict.fromkeys(
        ("max_image_tiles", "min_frames", "max_frames", "num_frames", *SIZES[:2], *SIZES[3:]), Length
    ),
    **dict.fromkeys(("sampling_rate", "feature_size", "n_fft", "hop_length"), Length),
    "resample": Annotated[int, Meta(ge=0, le=5)],
}
"""What fields hold; those named `do_...` are true or false."""

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CUBIC = (
    "CohereCompass Gemma4 Glm46V MiniCPMV Phi3V Qwen3VL LlavaOnevisionVideoProcessor Qwen3VLVideoProcessor"
)

CODED: dict[str, dict[str, Any]] = {
    **{kind: {"resample": 3} for kind in CUBIC.split()},
    "Gemma4VideoProcessor": {"resample": 3, "image_mean": [0] * 3, "image_std": [1] * 3, "do_resize": True},
    "Glm5Next": {"patch_expand_factor": 1},
    "HunYuanVL": {"resample": None},  # see `resize_alike`
    # As its publisher's code, which does not read the file of CLIP's that its folders have.
    "InternVL": {"image_mean": IMAGENET[0], "image_std": IMAGENET[1], "do_center_crop": None},
    # As transformers; files of published models say false, and the patches of their encoder.
    "Lfm2VlNumpy": {"do_resize": None, "max_num_patches": None},
    "Llama4": {"resample": 2},  # see `cut_into_tiles`
    "KimiK25": {"resample": 3, "merge_size": 2, "max_patches": 16384, "size": 512},
    "Mllama": {"max_image_tiles": 4},
    "MuseGlimmer": {"resample": 1},
    "muse_spark": {"resample": 1, "temporal_patch_size": 2},
    "paddleocr_vl": {"do_resize": True},
    "Phi4MMAudioFeatureExtractor": {"feature_size": 80, "n_fft": 512, "hop_length": 160, "win_length": 400},
    "Step3VLProcessor": {"do_resize": None, "resample": 2, "max_image_size": 3024, "size": 728},
}
"""What `...ImageProcessor` and others have in their code, whatever the files say, with Pillow's numbers of filters;
None for what makes no difference to them. A class of no other name is told by its family."""

ALSO = {
    "image_mean": "mean",
    "image_std": "std",
    "merge_size": "downsample_factor",
    "size": "image_size",
    "min_patches": "dynamic_min_num",
    "max_patches": "dynamic_max_num",
    "max_image_tokens": "max_num_image_tokens",
    "sampling_rate": "audio_sampling_rate",
    "hop_length": "audio_hop_length",
    "audio_compression_rate": "compression_rate",
    "audio_downsample_rate": "qformer_compression_rate",
    "audio_feat_stride": "feat_stride",
}
"""Names of fields that some processors have instead."""

PARTS: dict[Modality, tuple[str, str]] = {
    "image": ("image_processor", FILE),
    "video": ("video_processor", "video_preprocessor_config.json"),
    "audio": ("feature_extractor", FILE),
}
"""The parts of a processor that processor_config.json may describe, and the files that do so in older folders."""


def settings_of(folder: Path, modality: Modality = "image") -> dict[str, Any]:
    """The settings of a part of the processor, as transformers reads them: those in processor_config.json come first,
    those of its own class of the family last. Limits of pixels that transformers 5 writes as a size are there under
    their own names too, and settings that Kimi nests as others. A step that is null is off.

    Raises `ServerError` naming a field of another type, and one that is null and needed.
    """
    part, file = PARTS[modality]
    nested = object_in(folder / "processor_config.json").get(part)
    if isinstance(nested, dict):
        said, file = nested, "processor_config.json"
    else:
        said = object_in(folder / file) or object_in(folder / FILE)
    _require_types(folder, file, said)
    told = {name: value for name, value in said.items() if value is not None}
    said = {**dict.fromkeys((name for name in said if name.startswith("do_")), False), **told}
    if modality == "image":
        said = {**_usual_of(folder), **said}
    if isinstance(size := said.get("size"), dict) and size.keys() >= {"shortest_edge", "longest_edge"}:
        said = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"], **said}
    inner = said.get("media_proc_cfg")
    return {**inner, **said} if isinstance(inner, dict) else said


def _require_types(folder: Path, file: str, said: dict[str, Any]) -> None:
    for name, value in said.items():
        step = NEEDED.get(name)
        needed = name in NEEDED and (step is None or said.get(step, PIXELS[step]))
        if value is None and needed and not (name == "size" and said.keys() & SIZED):
            raise broken(folder / file, f"can't be used: its field {name} is null")
        typed(folder, file, name, value, bool if name.startswith("do_") else TYPES.get(name, Any))


class Usual(Struct, frozen=True):
    fields: dict[str, Any]


def splitting(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What mlx-vlm has to be told of how pictures are split, beside the folder's files."""
    said = settings_of(folder) if config.get("model_type") == "lfm2_vl" else {}
    names = ("do_image_splitting", "min_tiles", "max_tiles", "use_thumbnail")
    return {name: said[name] for name in names if name in said}


def _usual_of(folder: Path) -> dict[str, Any]:
    """What transformers' own class for a folder's pictures takes where a field is left out; empty where it has no such
    class that runs without torch."""
    from pippin.engines.language.kv_cache.agreement import FAILURES

    def ask() -> Usual:
        from transformers import AutoImageProcessor

        own: Any = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
        usual = type(own)().to_dict()
        return Usual({name: usual[name] for name in (*PIXELS, *SIZES, "size") if usual.get(name) is not None})

    try:
        return kept(Usual, ask, files_of(folder)).fields
    except (*FAILURES, ImportError):
        return {"resample": 2} if object_in(folder / "config.json").get("model_type") == "lfm2_vl" else {}


@contextmanager
def in_older_files(folder: Path) -> Iterator[Path]:
    """A folder of the same files with all settings of pictures and of videos in files of their own, where some families
    of mlx-vlm look for them. The model's own folder is not written."""
    said = {FILE: settings_of(folder)}
    part, file = PARTS["video"]
    if part in object_in(folder / "processor_config.json"):
        said[file] = settings_of(folder, "video")
    said = {file: held for file, held in said.items() if held != object_in(folder / file)}
    if not said:
        yield folder
        return
    with TemporaryDirectory() as made:
        for path in folder.iterdir():
            if path.name not in said:
                (Path(made) / path.name).symlink_to(path.resolve())
        for file, held in said.items():
            (Path(made) / file).write_text(json.dumps(held), "utf-8")
        yield Path(made)


def resize_alike(processor: Any) -> None:
    """Have a processor of mlx-vlm resize as transformers does.

    HunYuanVL's takes the bilinear filter; the bicubic one is right, whatever the published files say. MiniMax M3 VL's
    makes a side of less than half a token one token long, and leaves the other as it is. MuseSpark's gives a picture
    that is smaller than a token the proportions of two.
    """
    own: Any = getattr(processor, "image_processor", None)
    if hasattr(own, "min_num_image_tokens"):
        own.min_num_image_tokens = 0
    kind = type(own).__name__.partition("ImageProcessor")[0]
    if kind not in (step := {"HunYuanVL": "_preprocess_single", "MiniMaxM3VL": "_process_one"}):
        return
    from mlx_vlm.models.hunyuan_vl.processing_hunyuan_vl import smart_resize

    prepare, factor = getattr(own, step[kind]), own.patch_size * own.merge_size
    by = Resampling.BICUBIC if kind == "HunYuanVL" else own.resample

    def resized(picture: Image, **settings: Any) -> Any:
        height, width = picture.height, picture.width
        if kind == "HunYuanVL":
            height, width = smart_resize(height, width, factor, own.min_pixels, own.max_pixels)
        elif min(picture.size) * 2 <= factor:
            beta = math.sqrt(own.min_pixels / (height * width))
            height, width = (math.ceil(side * beta / factor) * factor for side in (height, width))
        return prepare(picture.convert("RGB").resize((width, height), by), **settings)

    if own.do_resize:
        setattr(own, step[kind], resized)


BY_FRAME = ("qwen2_vl", "qwen2_5_vl", "qwen3_omni_moe")


def limit_each_frame(processor: Any, kind: str) -> None:
    """Have videos of Qwen2-VL and the like keep the limits of pixels in each frame, as in transformers; mlx-vlm's class
    is Qwen3-VL's, which has them for all frames together."""
    own: Any = getattr(processor, "video_processor", None)
    if kind not in BY_FRAME or type(own).__name__ != "Qwen3VLVideoProcessor":
        return
    prepare, limits = own._process_one, (own.min_pixels, own.max_pixels)

    def prepared(frames: np.ndarray[Any, Any]) -> Any:
        rest = -len(frames) % own.temporal_patch_size
        whole = np.concatenate([frames, np.repeat(frames[-1:], rest, axis=0)])
        own.min_pixels, own.max_pixels = (len(whole) * limit for limit in limits)
        return prepare(whole)

    own._process_one = prepared


def hearing_part(processor: Any) -> Any:
    """What prepares sound for a model: the part of its processor that does, the processor itself, or None. Whisper's is
    told to say how long a sound is, as transformers does whatever the files say."""
    parts = (getattr(processor, name, None) for name in ("feature_extractor", "audio_processor"))
    found: Any = next((part for part in parts if part is not None), None)
    if type(found).__name__ == "WhisperFeatureExtractor":
        found.return_attention_mask = True
    return processor if found is None and hasattr(processor, "audio_sampling_rate") else found


def unprepared(folder: Path, processor: Any) -> dict[Modality, list[str]]:
    """The fields of a folder's settings that its family's processor leaves out, by modality."""
    found: dict[Modality, list[str]] = {}
    for modality, (part, _) in PARTS.items():
        own = hearing_part(processor) if modality == "audio" else getattr(processor, part, None)
        if own is None and modality == "image" and type(processor).__name__ in CODED:
            own = processor
        if own is not None:
            said = settings_of(folder, modality)
            # One file may have the fields of all; what takes sound, or chooses frames, makes no pixels.
            draws = modality == "image" or hasattr(own, "image_mean")
            asked = {name: value for name, value in said.items() if draws or name not in PIXELS}
            found[modality] = other_pixels(asked, own)
            if modality == "video" and said.get("num_frames") and not hasattr(own, "num_frames"):
                found[modality].append("num_frames")
    return found


def other_pixels(said: Mapping[str, Any], own: Any) -> list[str]:
    """The fields that a part of the processor does not have so: those of `PIXELS`, and numbers that it has under the
    same name."""
    read = _read_by(type(own))

    def held(name: str, otherwise: Any = None, among: Collection[str] | None = None) -> Any:
        names = [each for each in (name, ALSO.get(name, name)) if among is None or each in among]
        values = (getattr_static(own, each, None) for each in names)
        return next((value for value in values if value is not None), otherwise)

    kinds = [
        kind.__name__.partition("ImageProcessor")[0] or kind.__module__.split(".")[-2]
        for kind in type(own).__mro__
    ]
    coded = next((CODED[kind] for kind in kinds if kind in CODED), {})
    names = {**PIXELS, **coded}
    asked: dict[str, Any] = {
        name: [*value.values()] if isinstance(value, dict) else value
        for name in names
        if None not in (value := said.get(name), coded.get(name, value))
        and said.get(NEEDED.get(name) or "", True)
    }
    has = {name: coded.get(name, held(name, names[name], read)) for name in asked}
    if has.get("resample") is None:  # a filter that is not known
        asked.pop("resample", None)
    found = []
    for name, value in said.items():
        pair = [value.get("height") if isinstance(value, dict) else value, held(name)]
        if name not in names and {*map(type, pair)} <= {int, float} and pair[0] != pair[1]:
            found.append(name)
    return found + [
        name for name in asked if has[name] is None or not np.allclose(asked[name], has[name], atol=1e-6)
    ]


def _read_by(kind: type) -> set[str] | None:
    """The names that the code of a class of mlx-vlm reads: some keep settings that nothing asks for. None for a class
    of another library."""
    modules = {each.__module__ for each in kind.__mro__ if each.__module__.startswith("mlx_vlm.")}
    if not modules:
        return None
    nodes = (node for name in modules for node in ast.walk(ast.parse(inspect.getsource(sys.modules[name]))))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
