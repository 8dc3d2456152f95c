"""Model folders that mlx-vlm runs: how they are recognised, and how their model and processor are loaded."""

import importlib.util
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.nn as nn

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.language.vision.media import Modality
from pippin.engines.language.vision.model import VisionModel

if TYPE_CHECKING:
    from pippin.engines.language.vision.processing import MediaProcessor

log = logging.getLogger(__name__)

EXTRA_HINT = 'pip install "pippin[vision]"'

PLACEHOLDER_KEYS: dict[Modality, tuple[str, ...]] = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}
"""Keys of config.json that hold the id of a placeholder token, which features of a medium replace."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; empty where it is missing or no JSON object."""
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def placeholder_tokens(config: dict[str, Any]) -> dict[Modality, frozenset[int]]:
    """The ids of placeholder tokens by modality."""
    return {
        modality: frozenset(config[key] for key in keys if isinstance(config.get(key), int))
        for modality, keys in PLACEHOLDER_KEYS.items()
    }


def takes_media(config: dict[str, Any]) -> bool:
    """Whether the configuration names an encoder of pictures or audio."""
    return any(isinstance(config.get(key), dict) and config[key] for key in ("vision_config", "audio_config"))


def has_extra() -> bool:
    """Whether mlx-vlm is installed."""
    return importlib.util.find_spec("mlx_vlm") is not None


def is_vision(folder: Path) -> bool:
    """Whether mlx-vlm runs this model: it takes media, and the installed mlx-vlm knows its architecture."""
    config = read_config(folder)
    if not takes_media(config) or not has_extra():
        return False
    from mlx_vlm.utils import get_model_type

    family = get_model_type(config)
    return family is not None and importlib.util.find_spec(f"mlx_vlm.models.{family}") is not None


def load_model(folder: Path, **settings: Any) -> tuple[nn.Module, dict[str, Any]]:
    """mlx-lm's `load_model` for a model of mlx-vlm. Raises what mlx-vlm's own `load_model` raises."""
    import mlx_vlm.utils

    # mlx-vlm's function has no such argument. The caller has refused a folder with code that is not trusted.
    settings.pop("trust_remote_code", None)
    return VisionModel(mlx_vlm.utils.load_model(folder, **settings)), read_config(folder)


def load_processor(info: ModelInfo, options: ModelOptions) -> "MediaProcessor | None":
    """The processor of a model that takes media, or None for a model that is served for text alone."""
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
