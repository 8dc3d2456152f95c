"""How mflux runs each image model: its classes, by the name of the preset."""

from typing import Final

from msgspec import Struct

MFLUX: Final = "mflux.models."


class MfluxClasses(Struct, frozen=True):
    """The parts of mflux that run one image model. `model` and `latents` are written `module:Class`, below
    `mflux.models`."""

    model: str
    config: str  # the method of mflux's `ModelConfig` that describes it
    latents: str  # the class that unpacks its latents


FLUX = "flux.latent_creator.flux_latent_creator:FluxLatentCreator"
FLUX2 = "flux2.latent_creator.flux2_latent_creator:Flux2LatentCreator"
QWEN = "qwen.latent_creator.qwen_latent_creator:QwenLatentCreator"
FIBO = "fibo.latent_creator.fibo_latent_creator:FiboLatentCreator"
Z_IMAGE = "z_image.latent_creator:ZImageLatentCreator"
FLUX_TEXT = "flux.variants.txt2img.flux:Flux1"
FLUX2_TEXT = "flux2.variants:Flux2Klein"
FLUX2_EDIT = "flux2.variants:Flux2KleinEdit"

CLASSES: Final = {
    "flux-krea-dev": MfluxClasses(FLUX_TEXT, "krea_dev", FLUX),
    "flux-kontext-dev": MfluxClasses("flux.variants.kontext.flux_kontext:Flux1Kontext", "dev_kontext", FLUX),
    "flux-schnell": MfluxClasses(FLUX_TEXT, "schnell", FLUX),
    "flux-dev": MfluxClasses(FLUX_TEXT, "dev", FLUX),
    "qwen-image-edit": MfluxClasses(
        "qwen.variants.edit.qwen_image_edit:QwenImageEdit", "qwen_image_edit", QWEN
    ),
    "qwen-image-edit-2511": MfluxClasses(
        "qwen.variants.edit.qwen_image_edit:QwenImageEdit", "qwen_image_edit_2511", QWEN
    ),
    "qwen-image": MfluxClasses("qwen.variants.txt2img.qwen_image:QwenImage", "qwen_image", QWEN),
    "fibo": MfluxClasses("fibo.variants.txt2img.fibo:FIBO", "fibo", FIBO),
    "fibo-lite": MfluxClasses("fibo.variants.txt2img.fibo:FIBO", "fibo_lite", FIBO),
    "z-image": MfluxClasses("z_image.variants.z_image:ZImage", "z_image", Z_IMAGE),
    "z-image-turbo": MfluxClasses("z_image.variants.z_image:ZImage", "z_image_turbo", Z_IMAGE),
    "flux2-klein-edit-base-4b": MfluxClasses(FLUX2_EDIT, "flux2_klein_base_4b", FLUX2),
    "flux2-klein-edit-base-9b": MfluxClasses(FLUX2_EDIT, "flux2_klein_base_9b", FLUX2),
    "flux2-klein-edit-9b-kv": MfluxClasses(FLUX2_EDIT, "flux2_klein_9b_kv", FLUX2),
    "flux2-klein-base-4b": MfluxClasses(FLUX2_TEXT, "flux2_klein_base_4b", FLUX2),
    "flux2-klein-base-9b": MfluxClasses(FLUX2_TEXT, "flux2_klein_base_9b", FLUX2),
    "flux2-klein-edit-4b": MfluxClasses(FLUX2_EDIT, "flux2_klein_4b", FLUX2),
    "flux2-klein-edit-9b": MfluxClasses(FLUX2_EDIT, "flux2_klein_9b", FLUX2),
    "flux2-klein-4b": MfluxClasses(FLUX2_TEXT, "flux2_klein_4b", FLUX2),
    "flux2-klein-9b": MfluxClasses(FLUX2_TEXT, "flux2_klein_9b", FLUX2),
}
