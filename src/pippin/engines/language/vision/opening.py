"""Which of mlx-vlm's parts a model folder needs, and bringing them in."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.nn as nn

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.language.vision.checkpoint import (
    EXTRA_HINT,
    has_extra,
    is_known,
    read_config,
    takes_media,
)
from pippin.engines.language.vision.model import VisionModel

if TYPE_CHECKING:
    from pippin.engines.language.vision.processing import MediaProcessor

log = logging.getLogger(__name__)


def is_vision(folder: Path) -> bool:
    """Whether the model is run by mlx-vlm: it takes media, and the extra that can serve it is installed."""
    config = read_config(folder)
    return takes_media(config) and has_extra() and is_known(config)


def open_media(info: ModelInfo, options: ModelOptions) -> "MediaProcessor | None":
    """The processor of a model that takes more than text; without one it is served for text."""
    folder = Path(info.path or "")
    if not takes_media(read_config(folder)):
        return None
    if not has_extra():
        log.warning("%s is served for text only: for pictures, %s", info.id, EXTRA_HINT)
        return None
    if not is_vision(folder):
        log.warning(
            "%s is served for text only: the installed mlx-vlm does not know its architecture", info.id
        )
        return None
    from pippin.engines.language.vision.processing import FAILURES, MediaProcessor

    try:
        return MediaProcessor(folder, options)
    except (*FAILURES, ImportError) as error:
        log.warning("%s is served for text only: its processor can't be read (%s)", info.id, error)
        return None


def load_model(folder: Path, **settings: Any) -> tuple[nn.Module, dict[str, Any]]:
    """As mlx-lm's function of this name, through mlx-vlm. Raises what that raises."""
    import mlx_vlm.utils

    settings.pop("trust_remote_code", None)  # the caller has looked for code in the folder
    return VisionModel(mlx_vlm.utils.load_model(folder, **settings)), read_config(folder)
