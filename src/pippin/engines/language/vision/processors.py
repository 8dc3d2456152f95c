"""Opens the processor of a model folder: for media one by one, or for whole prompts."""

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.language.vision.checkpoint import has_extra, names_media, read_config, takes_media
from pippin.engines.language.vision.media import TEXT_ONLY, TextOnly

if TYPE_CHECKING:
    from pippin.engines.language.text.tokenizer import Tokenizer
    from pippin.engines.language.vision.prompt_processing import PromptProcessor

log = logging.getLogger(__name__)


def load_processor(info: ModelInfo, options: ModelOptions, tokenizer: "Tokenizer") -> TextOnly:
    """The processor of a model that takes media one by one, or `TEXT_ONLY` for another model.

    Raises `ServerError("load_failed")` as `load_prompt_processor` does.
    """
    folder = Path(info.path or "")
    config = read_config(folder)
    if not takes_media(config):
        if names_media(config):
            unknown = "the installed mlx-vlm does not know its architecture"
            why = unknown if has_extra() else f"for pictures, {install_command('vision')}"
            log.warning("the model is served for text only: %s", why)
        return TEXT_ONLY
    # Without torchvision, mlx-vlm's own processor of Phi-4-SigLIP calls itself for minutes, up to Python's limit.
    naflex = "naflex" in str(config.get("mm_vision_tower")).lower()
    if config.get("model_type") == "phi4-siglip" and naflex and not _has_torchvision():
        raise _lacks_torchvision(info)
    # These modules import what only the extra installs.
    from pippin.engines.language.kv_cache.agreement import FAILURES
    from pippin.engines.language.vision.processing import MediaProcessor

    try:
        processor = MediaProcessor(folder, options, tokenizer)
    except (*FAILURES, ImportError) as error:
        log.info("its processor cannot take media one by one (%s)", error)
        return TEXT_ONLY
    processor.try_modalities()
    return processor


def _has_torchvision() -> bool:
    return all(importlib.util.find_spec(package) is not None for package in ("torch", "torchvision"))


def _lacks_torchvision(info: ModelInfo) -> ServerError:
    return ServerError(
        "load_failed",
        f"The pictures of {info.id!r} are prepared by a processor of transformers that needs torchvision, which is not "
        "installed: pip install torch torchvision",
    )


def load_prompt_processor(
    info: ModelInfo, options: ModelOptions, tokenizer: "Tokenizer"
) -> "PromptProcessor | None":
    """The processor of a model that takes whole prompts with their media, or None for a model that takes none.

    Raises `ServerError("load_failed")` if only a package is missing, which the message names.
    """
    folder = Path(info.path or "")
    if not takes_media(read_config(folder)):
        return None
    from pippin.engines.language.kv_cache.agreement import FAILURES
    from pippin.engines.language.vision.prompt_processing import PromptProcessor

    try:
        return PromptProcessor(folder, options, tokenizer)
    except (*FAILURES, ImportError) as error:
        if isinstance(error, ImportError) and not _has_torchvision():
            raise _lacks_torchvision(info) from error
        log.warning("the model is served for text only: its processor can't be read (%s)", error)
        return None
