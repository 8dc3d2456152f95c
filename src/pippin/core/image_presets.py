"""The known image models: their steps and guidance, their inputs, and how a model is recognised."""

from typing import Final

from msgspec import Struct

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo


class ImagePreset(Struct, frozen=True, kw_only=True):
    """One image model: defaults for requests that leave values out, and what a request may use."""

    name: str
    steps: int
    guidance: float | None  # None for a model distilled to run without guidance
    edits: bool = False  # edits given pictures, and generates none without them
    negative: bool = False  # accepts a negative prompt
    captions: bool = False  # takes prompts that are JSON objects describing the picture
    pictures: int = 1  # most pictures in a request
    pipelines: tuple[str, ...] = ()  # `_class_name` in the folder's model_index.json
    names: tuple[str, ...] = ()  # parts of a repository's name that identify the model
    by_name_alone: bool = False  # its pipeline alone means another model, so only its name identifies it
    others: tuple[str, ...] = ()  # parts that identify another model whose name contains one of `names`

    def is_told_by(self, name: str) -> bool:
        """Whether a lower-case repository name is one of this model's."""
        return any(part in name for part in self.names) and not any(part in name for part in self.others)


class ImageDefaults(Struct, frozen=True):
    """Steps and guidance for a request that leaves them out; `guidance` is None for a model that takes none."""

    steps: int
    guidance: float | None


class LibraryDefaults(Struct, frozen=True):
    """The defaults of one model folder according to mlx-vlm; None for a task that it cannot do with the model."""

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
        name="qwen-image-edit-2511",
        steps=20,
        guidance=4.0,
        edits=True,
        negative=True,
        pictures=3,
        pipelines=("QwenImageEditPlusPipeline",),
        names=("qwen-image-edit-2511",),
        by_name_alone=True,
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
        others=("qwen-image-2",),
    ),
    ImagePreset(
        name="fibo-lite",
        steps=8,
        guidance=None,
        captions=True,
        pipelines=("BriaFiboPipeline",),
        names=("fibo-lite",),
        by_name_alone=True,
    ),
    ImagePreset(
        name="fibo",
        steps=50,
        guidance=5.0,
        negative=True,
        captions=True,
        pipelines=("BriaFiboPipeline",),
        names=("fibo",),
        others=("fibo-edit", "fibo-2", "fibo2"),
    ),
    ImagePreset(
        name="z-image-turbo",
        steps=9,
        guidance=None,
        pipelines=("ZImagePipeline",),
        names=("z-image-turbo", "zimage"),
    ),
    ImagePreset(
        name="z-image",
        steps=50,
        guidance=4.0,
        negative=True,
        pipelines=("ZImagePipeline",),
        names=("z-image",),
        by_name_alone=True,
    ),
    ImagePreset(
        name="flux2-klein-edit-base-4b",
        steps=50,
        guidance=4.0,
        edits=True,
        pictures=4,
    ),
    ImagePreset(
        name="flux2-klein-edit-4b",
        steps=4,
        guidance=1.0,
        edits=True,
        pictures=4,
    ),
    ImagePreset(
        name="flux2-klein-edit-base-9b",
        steps=50,
        guidance=4.0,
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
        name="flux2-klein-edit-9b-kv",
        steps=4,
        guidance=1.0,
        edits=True,
        pictures=4,
    ),
    ImagePreset(
        name="flux2-klein-base-4b",
        steps=50,
        guidance=4.0,
        names=("klein-base-4b",),
    ),
    ImagePreset(
        name="flux2-klein-4b",
        steps=4,
        guidance=1.0,
        names=("klein-4b",),
    ),
    ImagePreset(
        name="flux2-klein-base-9b",
        steps=50,
        guidance=4.0,
        names=("klein-base-9b",),
    ),
    ImagePreset(
        name="flux2-klein-9b",
        steps=4,
        guidance=1.0,
        names=("klein-9b",),
    ),
)
"""All presets, in the order in which `names` are matched: the more specific come first."""


def preset_of(info: ModelInfo, config_name: str | None) -> ImagePreset:
    """The preset called `config_name`, or else the one matched by the model's pipeline (its `architecture`) or name.

    Raises `ServerError("load_failed")` where none matches.
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
    lower = info.id.lower()
    alike = [preset for preset in PRESETS if info.architecture in preset.pipelines]
    for preset in alike or PRESETS:
        if preset.is_told_by(lower):
            return preset
    for preset in alike:
        if not preset.by_name_alone:
            return preset
    raise ServerError(
        "load_failed",
        f"{info.id} does not say which image model it is; name its preset with --config-name: {known()}.",
        "config_name",
    )


def known() -> str:
    return ", ".join(sorted(preset.name for preset in PRESETS))
