"""The image models that are known: their steps and guidance, what they take, and how a model is told to be one."""

from typing import Final

from msgspec import Struct

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo


class ImagePreset(Struct, frozen=True, kw_only=True):
    """What holds for one image model where a request leaves it out, and what a request may ask of it."""

    name: str
    steps: int
    guidance: float | None  # None for a model that was distilled to take none
    edits: bool = False  # it edits given pictures, and generates none without them
    negative: bool = False  # it takes a negative prompt
    captions: bool = False  # its prompts are JSON objects that describe the picture
    pictures: int = 1  # the most that a request may give it
    pipelines: tuple[str, ...] = ()  # `_class_name` in the folder's model_index.json
    names: tuple[str, ...] = ()  # parts of a repository's name that tell it


class ImageDefaults(Struct, frozen=True):
    """Steps and guidance of a picture whose request leaves them out; None for a model that takes no guidance."""

    steps: int
    guidance: float | None


class LibraryDefaults(Struct, frozen=True):
    """What mlx-vlm says of one model folder; None for what it cannot do with it."""

    generate: ImageDefaults | None
    edit: ImageDefaults | None


PRESETS: Final = (
    ImagePreset(
        name="flux-krea-dev",
        steps=25,
        guidance=4.5,
        names=("krea-dev", "flux.1-krea"),
    ),
    ImagePreset(
        name="flux-kontext-dev",
        steps=28,
        guidance=2.5,
        edits=True,
        pipelines=("FluxKontextPipeline",),
        names=("kontext",),
    ),
    ImagePreset(
        name="flux-schnell",
        steps=4,
        guidance=None,
        names=("schnell",),
    ),
    ImagePreset(
        name="flux-dev",
        steps=25,
        guidance=3.5,
        names=("flux.1-dev", "flux-dev", "flux1-dev"),
    ),
    ImagePreset(
        name="qwen-image-edit",
        steps=20,
        guidance=4.0,
        edits=True,
        negative=True,
        pictures=3,
        pipelines=("QwenImageEditPipeline", "QwenImageEditPlusPipeline"),
        names=("qwen-image-edit",),
    ),
    ImagePreset(
        name="qwen-image",
        steps=20,
        guidance=4.0,
        negative=True,
        pipelines=("QwenImagePipeline",),
        names=("qwen-image",),
    ),
    ImagePreset(
        name="fibo",
        steps=50,
        guidance=5.0,
        negative=True,
        captions=True,
        pipelines=("BriaFiboPipeline",),
        names=("fibo",),
    ),
    ImagePreset(
        name="z-image-turbo",
        steps=9,
        guidance=None,
        pipelines=("ZImagePipeline",),
        names=("z-image-turbo", "zimage"),
    ),
    ImagePreset(
        name="flux2-klein-edit-4b",
        steps=4,
        guidance=1.0,
        edits=True,
        pictures=4,
    ),
    ImagePreset(
        name="flux2-klein-edit-9b",
        steps=4,
        guidance=1.0,
        edits=True,
        pictures=4,
    ),
    ImagePreset(
        name="flux2-klein-4b",
        steps=4,
        guidance=1.0,
        names=("klein-4b",),
    ),
    ImagePreset(
        name="flux2-klein-9b",
        steps=4,
        guidance=1.0,
        names=("klein-9b",),
    ),
)
"""All of them, in the order in which a repository's name is compared with `names`: the more specific come first."""


def preset_of(info: ModelInfo, config_name: str | None) -> ImagePreset:
    """The preset that `config_name` names, or else that the model's pipeline (its `architecture`) or its name tells.

    Raises `ServerError("load_failed")` where none does.
    """
    if config_name is not None:
        for preset in PRESETS:
            if preset.name == config_name:
                return preset
        raise ServerError(
            "load_failed",
            f"There is no image model preset {config_name!r}; there are {known()}.",
            "config_name",
        )
    for preset in PRESETS:
        if info.architecture in preset.pipelines:
            return preset
    lower = info.id.lower()
    for preset in PRESETS:
        if any(part in lower for part in preset.names):
            return preset
    raise ServerError(
        "load_failed",
        f"{info.id} does not say which image model it is; name its preset with --config-name: {known()}.",
        "config_name",
    )


def known() -> str:
    return ", ".join(sorted(preset.name for preset in PRESETS))
