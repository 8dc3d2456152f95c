"""What a model's folder says of how pictures are prepared, and what its family's processor leaves out of that."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import getattr_static
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct
from PIL.Image import Image, Resampling

from pippin.core.decoding import from_json
from pippin.core.published import broken, object_in, table, typed
from pippin.engines.language.kept import files_of, kept
from pippin.engines.language.upstream.fields import names_read
from pippin.engines.language.vision.media import Modality

FILE = "preprocessor_config.json"

Size = tuple[int, int]


class _Tables(Struct, frozen=True):
    """What is known of settings: `preprocessor.json`."""

    fields: dict[str, dict[str, Any]]
    """`usual`: what a processor does without a field that decides the pixels of pictures, None where that is not known.
    `needed_by`: the step without which the field may be null; None where it never may. `also`: the name that some
    processors have instead."""
    sized: frozenset[str]
    """Fields that say how large pictures are where their size is null."""
    coded: dict[str, dict[str, Any]]
    """What `...ImageProcessor` and others have in their code, whatever the files say, with Pillow's numbers of filters;
    None for what makes no difference to them. A class of no other name is told by its family. InternVL's is as its
    publisher's code, which does not read the file of CLIP's that its folders have; LFM2-VL's as in transformers: files
    of published models say false, and the patches of their encoder."""
    of_films: dict[str, dict[str, Any]]
    """What transformers' classes for films take where a field is left out, and mlx-vlm's does not, by families."""
    steady: dict[str, list[str]]
    """Steps that the processors of families can't do without, in transformers neither."""

    def column(self, name: str) -> dict[str, Any]:
        return {field: said[name] for field, said in self.fields.items() if name in said}


TABLES: Final = from_json(Path(__file__).with_suffix(".json").read_bytes(), _Tables)
PIXELS, NEEDED, ALSO = map(TABLES.column, ("usual", "needed_by", "also"))
CODED = TABLES.coded

SIZES = ("min_pixels", "max_pixels", "patch_size", "merge_size", "temporal_patch_size")
"""Whole numbers that decide how large pictures are and how they are cut; a processor has those that it knows."""

Length = Annotated[int, Meta(ge=1)]
Lengths = Length | Annotated[list[Length], Meta(min_length=2, max_length=2)] | dict[str, Length | None]

TYPES: dict[str, Any] = {
    **dict.fromkeys(("image_mean", "image_std"), float | list[float]),
    "rescale_factor": float,
    "fps": Annotated[float, Meta(gt=0)],
    **dict.fromkeys(("size", "crop_size", "pad_size", "patch_size"), Lengths),
    **dict.fromkeys(
        ("max_image_tiles", "min_frames", "max_frames", "num_frames", *SIZES[:2], *SIZES[3:]), Length
    ),
    **dict.fromkeys(("sampling_rate", "feature_size", "n_fft", "hop_length"), Length),
    "resample": Annotated[int, Meta(ge=0, le=5)],
}
"""What fields hold; those named `do_...` are true or false."""

PARTS: dict[Modality, tuple[str, str]] = {
    "image": ("image_processor", FILE),
    "video": ("video_processor", "video_preprocessor_config.json"),
    "audio": ("feature_extractor", FILE),
}
"""The parts of a processor that processor_config.json may describe, and the files that do so in older folders."""


WHOLE: Final = "processor"
Settings = Mapping[str, dict[str, Any]]
"""The settings of the parts of a processor by their modality, and those of the `WHOLE` beside its parts."""


def settings_in(folder: Path) -> Settings:
    """The settings of all parts, and of the whole. Raises as `settings_of` does."""
    whole = object_in(folder / "processor_config.json")
    return {WHOLE: whole, **{modality: settings_of(folder, modality) for modality in PARTS}}


def settings_of(folder: Path, modality: Modality = "image") -> dict[str, Any]:
    """The settings of a part of the processor, as transformers reads them: those in processor_config.json come first,
    those of its own class of the family last. Limits of pixels that transformers 5 writes as a size are there under
    their own names too, and settings that Kimi nests as others. A step that is null is off.

    Raises `ServerError` naming a field of another type, one that is null and needed, and a step that can't be off.
    """
    part, file = PARTS[modality]
    nested = object_in(folder / "processor_config.json").get(part)
    if isinstance(nested, dict):
        said, file = nested, "processor_config.json"
    else:
        said = object_in(folder / file) or object_in(folder / FILE)
    kind = object_in(folder / "config.json").get("model_type")
    usual = _usual_of(folder) if modality == "image" else {}
    # MiniCPM-V's publisher has other names for two fields, which its processor reads where these are missing.
    older = {name: name.replace("image_", "norm_") for name in ("image_mean", "image_std")}
    usual = {name: value for name, value in usual.items() if older.get(name) not in said}
    if modality == "video":
        usual = TABLES.of_films.get(str(kind), {})
    _require_types(folder, file, said, usual)
    for name in TABLES.steady.get(str(kind), ()):
        if not said.get(name, True):
            raise broken(folder / file, f"can't be used: the processor of its family never leaves out {name}")
    told = {name: value for name, value in said.items() if value is not None}
    off = dict.fromkeys((name for name in said if name.startswith("do_")), False)
    said = {**usual, **off, **told}
    if isinstance(size := said.get("size"), dict) and size.keys() >= {"shortest_edge", "longest_edge"}:
        said = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"], **said}
    inner = said.get("media_proc_cfg")
    return {**inner, **said} if isinstance(inner, dict) else said


def _require_types(folder: Path, file: str, said: dict[str, Any], usual: dict[str, Any]) -> None:
    for name, value in said.items():
        step = NEEDED.get(name)
        needed = name in NEEDED and (step is None or {**PIXELS, **usual, **said}.get(step))
        if value is None and needed and not (name == "size" and said.keys() & TABLES.sized):
            raise broken(folder / file, f"can't be used: its field {name} is null")
        typed(folder, file, name, value, bool if name.startswith("do_") else TYPES.get(name, Any))


class Usual(Struct, frozen=True):
    fields: dict[str, Any]


SPLITTING = ("do_image_splitting", "min_tiles", "max_tiles", "use_thumbnail")


def splitting(said: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What mlx-vlm has to be told of how pictures are split, beside the folder's files."""
    names = SPLITTING if config.get("model_type") == "lfm2_vl" else ()
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
def in_older_files(folder: Path, settings: Settings) -> Iterator[Path]:
    """A folder of the same files with all settings of pictures and of videos in files of their own, where some families
    of mlx-vlm look for them. The model's own folder is not written."""
    said = {FILE: settings["image"]}
    part, file = PARTS["video"]
    if part in settings[WHOLE] or object_in(folder / "config.json").get("model_type") in TABLES.of_films:
        said[file] = settings["video"]
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
    """Have a processor of mlx-vlm resize as transformers does."""
    own: Any = getattr(processor, "image_processor", None)
    # MuseSpark's gives a picture that is smaller than a token the proportions of two.
    if hasattr(own, "min_num_image_tokens"):
        own.min_num_image_tokens = 0
    step, size_of = RESIZED.get(type(own).__name__, ("", None))
    if size_of is None or not own.do_resize:
        return
    prepare: Callable[..., Any] = getattr(own, step)

    def resized(picture: Image, **settings: Any) -> Any:
        size, by = size_of(own, picture)
        return prepare(picture.convert("RGB").resize(size, by), **settings)

    setattr(own, step, resized)


def _size_in_hunyuan(own: Any, picture: Image) -> tuple[Size, Resampling]:
    """mlx-vlm takes the bilinear filter; the bicubic one is right, whatever the published files say."""
    from mlx_vlm.models.hunyuan_vl.processing_hunyuan_vl import smart_resize

    factor = own.patch_size * own.merge_size
    height, width = smart_resize(picture.height, picture.width, factor, own.min_pixels, own.max_pixels)
    return (width, height), Resampling.BICUBIC


def _size_in_minimax(own: Any, picture: Image) -> tuple[Size, Resampling]:
    """mlx-vlm makes a side of less than half a token one token long, and leaves the other as it is."""
    factor, size = own.patch_size * own.merge_size, picture.size
    if min(size) * 2 <= factor:
        grown = math.sqrt(own.min_pixels / math.prod(size))
        size = math.ceil(size[0] * grown / factor) * factor, math.ceil(size[1] * grown / factor) * factor
    return size, own.resample


RESIZED: dict[str, tuple[str, Callable[[Any, Image], tuple[Size, Resampling]]]] = {
    "HunYuanVLImageProcessor": ("_preprocess_single", _size_in_hunyuan),
    "MiniMaxM3VLImageProcessor": ("_process_one", _size_in_minimax),
}
"""Classes of mlx-vlm whose pictures get a size (width and height) and filter of transformers' first, and the method
that prepares one of them."""


def hearing_part(processor: Any) -> Any:
    """What prepares sound for a model: the part of its processor that does, the processor itself, or None. Whisper's is
    told to say how long a sound is, as transformers does whatever the files say."""
    parts = (getattr(processor, name, None) for name in ("feature_extractor", "audio_processor"))
    found: Any = next((part for part in parts if part is not None), None)
    if type(found).__name__ == "WhisperFeatureExtractor":
        found.return_attention_mask = True
    return processor if found is None and hasattr(processor, "audio_sampling_rate") else found


def unprepared(
    settings: Settings, processor: Any, config: Mapping[str, Any] = MappingProxyType({})
) -> dict[Modality, list[str]]:
    """The fields of these settings that the family's processor leaves out, by modality, and those that contradict the
    encoder of this configuration."""
    found: dict[Modality, list[str]] = {}
    for modality, (part, _) in PARTS.items():
        own = hearing_part(processor) if modality == "audio" else getattr(processor, part, None)
        if own is None and modality == "image" and type(processor).__name__ in CODED:
            own = processor
        if own is not None:
            said = settings[modality]
            # One file may have the fields of all; what takes sound, or chooses frames, makes no pixels.
            draws = modality == "image" or hasattr(own, "image_mean")
            asked = {name: value for name, value in said.items() if draws or name not in PIXELS}
            found[modality] = other_pixels(asked, own)
            if modality == "video" and said.get("num_frames") and not hasattr(own, "num_frames"):
                found[modality].append("num_frames")
            if modality == "audio" and isinstance(config.get("sound_config"), dict):
                told = _other_sounds(asked, own, config["sound_config"])
                found[modality] += [name for name in told if name not in found[modality]]
    if "image" in found:
        # Its class takes them from config.json; those of others may hold what they make of them.
        names = ("patch_size", "spatial_merge_size") if config.get("model_type") == "mistral3" else ()
        whole = settings[WHOLE]
        found["image"] += [each for each in names if whole.get(each) not in (None, getattr(processor, each))]
        found["image"] += _other_tiles(getattr(processor, "image_processor", None), config)
    return found


def _other_sounds(said: Mapping[str, Any], own: Any, sound: dict[str, Any]) -> list[str]:
    """The fields that are others in `sound_config`, by which mlx-vlm makes the features of Nemotron's sound."""
    from mlx_vlm.models.nemotron_h_nano_omni.config import AudioConfig

    has = vars(AudioConfig.from_dict(sound))
    has["feature_size"] = has["num_mel_bins"]
    told = {name: getattr(own, f"audio_{name}", said.get(name)) for name in has}
    return [name for name in has if told[name] not in (None, has[name])]


def _other_tiles(own: Any, config: Mapping[str, Any]) -> list[str]:
    """The field of a processor of tiles that are not as large as the pictures of the encoder, whose features they are
    counted by."""
    side = table(config.get("vision_config")).get("image_size")
    name = "crop_size" if getattr(own, "do_center_crop", None) else "size"
    tile: Any = getattr(own, name, None)
    if type(side) is not int or tile is None or not getattr(own, "image_grid_pinpoints", None):
        return []
    return [] if side in (tile if isinstance(tile, dict) else vars(tile)).values() else [name]


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
        sides = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            sides = [value[side] for side in ("height", "width") if side in value]
        own_side = held(name)
        if name == "size" and "FastVLM" in kinds and isinstance(own_side, dict):
            own_side = own_side.get("height")  # the side that it reads
        # What has one number for both sides has no other for one of them.
        if name not in names and {*map(type, [*sides, own_side])} <= {int, float} and {*sides} - {own_side}:
            found.append(name)
    return found + [
        name for name in asked if has[name] is None or not np.allclose(asked[name], has[name], atol=1e-6)
    ]


def _read_by(kind: type) -> set[str] | None:
    """The names that the code of a class of mlx-vlm reads: some keep settings that nothing asks for. None for a class
    of another library."""
    modules = {each.__module__ for each in kind.__mro__ if each.__module__.startswith("mlx_vlm.")}
    return set[str]().union(*map(names_read, modules)) if modules else None
