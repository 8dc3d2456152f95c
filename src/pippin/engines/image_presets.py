"""How mflux runs each image model: its classes, steps and guidance, and how a model folder is told."""

import json
from pathlib import Path

from msgspec import Struct

from pippin.core.errors import ServerError

MFLUX = "mflux.models."


class Preset(Struct, frozen=True, kw_only=True):
    """One image model of mflux. `model` and `latents` are written `module:Class`, below `mflux.models`."""

    name: str
    model: str
    config: str  # the method of mflux's `ModelConfig` that describes it
    latents: str  # the class that unpacks its latents
    steps: int
    guidance: float | None  # None for a model that was distilled to take none
    edits: bool = False  # it edits given pictures, and generates none without them
    negative: bool = False  # it takes a negative prompt
    captions: bool = False  # its prompts are JSON objects that describe the picture
    pictures: int = 1  # the most that a request may give it
    pipelines: tuple[str, ...] = ()  # `_class_name` in the folder's model_index.json
    names: tuple[str, ...] = ()  # parts of a repository's name that tell it


FLUX = "flux.latent_creator.flux_latent_creator:FluxLatentCreator"
FLUX2 = "flux2.latent_creator.flux2_latent_creator:Flux2LatentCreator"
QWEN = "qwen.latent_creator.qwen_latent_creator:QwenLatentCreator"
FIBO = "fibo.latent_creator.fibo_latent_creator:FiboLatentCreator"
Z_IMAGE = "z_image.latent_creator:ZImageLatentCreator"
FLUX_TEXT = "flux.variants.txt2img.flux:Flux1"
FLUX2_TEXT = "flux2.variants:Flux2Klein"
FLUX2_EDIT = "flux2.variants:Flux2KleinEdit"

PRESETS = (
    Preset(
        name="flux-krea-dev",
        model=FLUX_TEXT,
        config="krea_dev",
        latents=FLUX,
        steps=25,
        guidance=4.5,
        names=("krea-dev", "flux.1-krea"),
    ),
    Preset(
        name="flux-kontext-dev",
        model="flux.variants.kontext.flux_kontext:Flux1Kontext",
        config="dev_kontext",
        latents=FLUX,
        steps=28,
        guidance=2.5,
        edits=True,
        pipelines=("FluxKontextPipeline",),
        names=("kontext",),
    ),
    Preset(
        name="flux-schnell",
        model=FLUX_TEXT,
        config="schnell",
        latents=FLUX,
        steps=4,
        guidance=None,
        names=("schnell",),
    ),
    Preset(
        name="flux-dev",
        model=FLUX_TEXT,
        config="dev",
        latents=FLUX,
        steps=25,
        guidance=3.5,
        names=("flux.1-dev", "flux-dev", "flux1-dev"),
    ),
    Preset(
        name="qwen-image-edit",
        model="qwen.variants.edit.qwen_image_edit:QwenImageEdit",
        config="qwen_image_edit",
        latents=QWEN,
        steps=20,
        guidance=4.0,
        edits=True,
        negative=True,
        pictures=3,
        pipelines=("QwenImageEditPipeline", "QwenImageEditPlusPipeline"),
        names=("qwen-image-edit",),
    ),
    Preset(
        name="qwen-image",
        model="qwen.variants.txt2img.qwen_image:QwenImage",
        config="qwen_image",
        latents=QWEN,
        steps=20,
        guidance=4.0,
        negative=True,
        pipelines=("QwenImagePipeline",),
        names=("qwen-image",),
    ),
    Preset(
        name="fibo",
        model="fibo.variants.txt2img.fibo:FIBO",
        config="fibo",
        latents=FIBO,
        steps=50,
        guidance=5.0,
        negative=True,
        captions=True,
        pipelines=("BriaFiboPipeline",),
        names=("fibo",),
    ),
    Preset(
        name="z-image-turbo",
        model="z_image.variants.z_image:ZImage",
        config="z_image_turbo",
        latents=Z_IMAGE,
        steps=9,
        guidance=None,
        pipelines=("ZImagePipeline",),
        names=("z-image-turbo", "zimage"),
    ),
    Preset(
        name="flux2-klein-edit-4b",
        model=FLUX2_EDIT,
        config="flux2_klein_4b",
        latents=FLUX2,
        steps=4,
        guidance=1.0,
        edits=True,
        pictures=4,
    ),
    Preset(
        name="flux2-klein-edit-9b",
        model=FLUX2_EDIT,
        config="flux2_klein_9b",
        latents=FLUX2,
        steps=4,
        guidance=1.0,
        edits=True,
        pictures=4,
    ),
    Preset(
        name="flux2-klein-4b",
        model=FLUX2_TEXT,
        config="flux2_klein_4b",
        latents=FLUX2,
        steps=4,
        guidance=1.0,
        names=("klein-4b",),
    ),
    Preset(
        name="flux2-klein-9b",
        model=FLUX2_TEXT,
        config="flux2_klein_9b",
        latents=FLUX2,
        steps=4,
        guidance=1.0,
        names=("klein-9b",),
    ),
)
"""All presets, in the order in which a repository's name is compared with `names`: the more specific come first."""


def preset_of(folder: Path, name: str, config_name: str | None) -> Preset:
    """The preset that `config_name` names, or else that model_index.json or the model's name tells.

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
    pipeline = _pipeline(folder)
    for preset in PRESETS:
        if pipeline in preset.pipelines:
            return preset
    lower = name.lower()
    for preset in PRESETS:
        if any(part in lower for part in preset.names):
            return preset
    raise ServerError(
        "load_failed",
        f"{name} does not say which image model it is; name its preset with --config-name: {known()}.",
        "config_name",
    )


def known() -> str:
    return ", ".join(sorted(preset.name for preset in PRESETS))


def _pipeline(folder: Path) -> str | None:
    try:
        index = json.loads((folder / "model_index.json").read_bytes())
    except (OSError, ValueError):
        return None
    found = index.get("_class_name") if isinstance(index, dict) else None
    return found if isinstance(found, str) else None
