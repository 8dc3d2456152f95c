"""What Bonsai needs besides its folder: Apple's GPU, and a decoder that lies in a repository of its own.

mlx-vlm would fetch the decoder when the first picture is done, allowed or not. Here it is looked for before the load,
in the model's folder or in the hub's cache, and given to the pipeline.
"""

from pathlib import Path
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo

BESIDE: Final = ("vae", "FLUX.2-small-decoder")
"""The folders, in the model's own, where the decoder's file may lie."""


def check(info: ModelInfo, accelerator: str) -> None:
    """Raises `ServerError("load_failed")` for a Bonsai that cannot paint here."""
    from mlx_vlm.models.bonsai.weights import SMALL_DECODER_FILE, SMALL_DECODER_REPO

    if accelerator != "metal":
        message = f"The model {info.id!r} computes with kernels for Apple's GPU alone: it needs a Mac."
        raise ServerError("load_failed", message)
    if find_decoder(Path(info.path or "")) is None:
        raise ServerError(
            "load_failed",
            f"The model {info.id!r} decodes its pictures with {SMALL_DECODER_FILE} of {SMALL_DECODER_REPO}, which is "
            f"not here: fetch it first (hf download {SMALL_DECODER_REPO} {SMALL_DECODER_FILE}), or put it into the "
            f"folder {BESIDE[0]} of the model.",
        )


def find_decoder(folder: Path) -> Path | None:
    """The decoder's file on this disk. The network is not asked."""
    from huggingface_hub import try_to_load_from_cache
    from mlx_vlm.models.bonsai.weights import SMALL_DECODER_FILE, SMALL_DECODER_REPO

    for name in BESIDE:
        path = folder / name / str(SMALL_DECODER_FILE)
        if path.is_file():
            return path
    cached = try_to_load_from_cache(SMALL_DECODER_REPO, SMALL_DECODER_FILE)
    return Path(cached) if isinstance(cached, str) else None


def load_decoder(folder: Path) -> Any:
    """The decoder, read from what `find_decoder` finds."""
    from mlx_vlm.models.bonsai import weights

    path = find_decoder(folder)
    assert path is not None
    fetch = weights.hf_hub_download
    # mlx-vlm's function takes no path: it calls this one to get it.
    weights.hf_hub_download = lambda **_: str(path)
    try:
        return weights.load_vae()
    finally:
        weights.hf_hub_download = fetch
