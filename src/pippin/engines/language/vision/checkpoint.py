"""Whether a folder holds a model that mlx-vlm can run, and where its media go."""

import importlib.util
import json
from pathlib import Path
from typing import Any

EXTRA_HINT = 'pip install "pippin[vision]"'
MARKS = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}
"""Keys of config.json for the tokens that features of media take the place of."""


def read_config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def takes_media(config: dict[str, Any]) -> bool:
    """Whether its configuration speaks of towers for pictures or sound."""
    return any(isinstance(config.get(key), dict) and config[key] for key in ("vision_config", "audio_config"))


def has_extra() -> bool:
    return importlib.util.find_spec("mlx_vlm") is not None


def is_known(config: dict[str, Any]) -> bool:
    """Whether mlx-vlm, which must be there, has the architecture."""
    from mlx_vlm.utils import get_model_type

    family = get_model_type(config)
    return family is not None and importlib.util.find_spec(f"mlx_vlm.models.{family}") is not None


def marks(config: dict[str, Any]) -> dict[str, frozenset[int]]:
    """Token ids by kind of medium."""
    return {
        kind: frozenset(config[key] for key in keys if isinstance(config.get(key), int))
        for kind, keys in MARKS.items()
    }
