"""What MLX, Metal and CUDA say when the device fails, and the way out."""

import re
from typing import Final

DEVICE_FAILURE: Final = re.compile(
    r"\[metal(\]|::)|\[malloc|command buffer|insufficient memory|out of memory|cuda ?error|\b(cuda|cudnn|cublas)\w+\("
    r"|\b(?-i:cu[A-Z])\w+\(",
    re.IGNORECASE,
)
"""In the message of what MLX raises when the device fails. The model may be sound."""

MENDS: Final = "unload other models, or take a smaller quantisation"

WAYS_OUT: Final = {
    r"impacting ?interactivity|gpu ?(timeout|hang)|callbackerror(timeout|hang)": "macOS ended its work on the GPU, as "
    "it took long and kept the display waiting: start the server with AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in its "
    "environment, or lower --prefill-step-size.",
    "maximum allowed buffer size": "It asked for an array larger than Metal allows: send less at once, or lower "
    "--prefill-step-size or --max-num-seqs.",
    r"\[metal::malloc\] resource limit": "It held more arrays than Metal allows: lower the model's --cache-memory-mb "
    "or --memory-bytes.",
    r"insufficient memory|outofmemory|out of memory|\[metal::malloc\]|unable to allocate": "The GPU's memory was full: "
    f"{MENDS}, or lower the model's --memory-bytes.",
    "innocent ?victim|victim of gpu error|submissions ?ignored|causing prior": "The GPU failed in other work, and this "
    "was dropped with it: send the request again, and see what else uses the GPU.",
    "callbackerrorpagefault|gpu address fault|illegal memory access|unable to (build metal library|load kernel|load "
    "function)|load the (default )?metallib|no kernel image": "A kernel of the GPU is missing or has failed: install "
    "another version of mlx, or update macOS or the driver.",
}
"""Words, and the way out where they are said; of several, the first counts."""


def is_of_device(error: BaseException) -> bool:
    """Whether an error tells of the device: of its memory, or of a killed command."""
    return DEVICE_FAILURE.search(str(error)) is not None


def way_out(text: str) -> str | None:
    """The way out of what these words tell of; None if it is not known."""
    return next((way for words, way in WAYS_OUT.items() if re.search(words, text, re.IGNORECASE)), None)


def with_way_out(message: str) -> str:
    """The message, and the way out of what it tells of."""
    way = way_out(message)
    return message if way is None or way in message else f"{message.rstrip('. ')}. {way}"
