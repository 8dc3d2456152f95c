"""Model folders that mlx-vlm runs: how they are recognised, and how their model is loaded."""

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import mlx.nn as nn

from pippin.core.errors import ServerError
from pippin.core.published import name_of, object_in
from pippin.engines.language.upstream import newest, reading
from pippin.engines.language.upstream.library import MODEL_REMAPPING
from pippin.engines.language.upstream.mends import mend
from pippin.engines.language.vision.media import Modality
from pippin.engines.language.vision.model import VisionModel

PLACEHOLDER_KEYS: dict[Modality, tuple[str, ...]] = {
    "image": ("image_token_id", "image_token_index", "img_context_token_id"),
    "video": ("video_token_id", "video_token_index", "video_context_token_id"),
    "audio": ("audio_token_id", "audio_token_index", "sound_context_token_id"),
}
"""Keys of config.json that hold the id of a placeholder token, which features of a medium replace."""


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json with the type of its family; empty where it is missing or no JSON object."""
    return newest.in_its_family(object_in(folder / "config.json"))


def placeholder_tokens(config: dict[str, Any]) -> dict[Modality, frozenset[int]]:
    """The ids of placeholder tokens by modality."""
    return {
        modality: frozenset(config[key] for key in keys if isinstance(config.get(key), int))
        for modality, keys in PLACEHOLDER_KEYS.items()
    }


MEDIA_FIELDS = ("vision", "audio", "mm_vision", "img_processor", "thinker_config")
"""Prefixes of the configuration fields of media encoders; fields of token ids do not count."""


def names_media(config: dict[str, Any]) -> bool:
    """Whether the configuration of a checkpoint has fields of media encoders."""
    return any(_configures_media(key) and value not in (None, {}) for key, value in config.items())


def _configures_media(field: str) -> bool:
    return field.startswith(MEDIA_FIELDS) and not field.endswith(("_id", "_index", "_token"))


def has_extra() -> bool:
    """Whether mlx-vlm is installed."""
    return importlib.util.find_spec("mlx_vlm") is not None


def family_of(config: dict[str, Any]) -> str | None:
    """The package of mlx-vlm whose model generates text for this configuration, if the installed mlx-vlm has one."""
    if not has_extra():
        return None
    from mlx_vlm.utils import get_model_type

    family = get_model_type(config)
    if family is None or importlib.util.find_spec(f"mlx_vlm.models.{family}") is None:
        return None
    model = getattr(_package(family), "Model", None)
    return family if hasattr(model, "get_input_embeddings") else None


def family_takes_media(family: str) -> bool:
    """Whether mlx-vlm's package of this name has an encoder of pictures or sound, or configures one."""
    package = _package(family)
    if any(hasattr(package, name) for name in ("VisionModel", "VisionConfig", "AudioModel", "AudioConfig")):
        return True
    configuration = getattr(package, "ModelConfig", None)
    fields = inspect.signature(configuration).parameters if configuration is not None else {}
    return any(map(_configures_media, fields))


def _package(family: str) -> Any:
    return importlib.import_module(f"mlx_vlm.models.{family}")


def mlx_lm_knows(config: dict[str, Any]) -> bool:
    """Whether the installed mlx-lm has this architecture."""
    kind = str(config.get("model_type"))
    return importlib.util.find_spec(f"mlx_lm.models.{MODEL_REMAPPING.get(kind, kind)}") is not None


def takes_media(config: dict[str, Any]) -> bool:
    """Whether the model takes pictures or sound: mlx-vlm's package for it has encoders, and they are configured."""
    if mlx_lm_knows(config) and not names_media(config):  # some families have such checkpoints too
        return False
    family = family_of(config)
    return family is not None and family_takes_media(family)


def is_vision(folder: Path) -> bool:
    """Whether mlx-vlm runs this model: it takes media, or mlx-lm does not know its architecture."""
    config = read_config(folder)
    return takes_media(config) or (not mlx_lm_knows(config) and family_of(config) is not None)


def load_model(folder: Path, **settings: Any) -> tuple[nn.Module, dict[str, Any]]:
    """mlx-lm's `load_model` for a model of mlx-vlm. Raises what mlx-vlm's own `load_model` raises."""
    from mlx_vlm.generate.diffusion import is_diffusion_model

    # mlx-vlm's function has no such argument. The caller has refused a folder with code that is not trusted.
    settings.pop("trust_remote_code", None)
    model = reading.load_model(folder, **settings)
    if is_diffusion_model(model):
        raise ServerError(
            "load_failed",
            f"The model {name_of(folder)!r} is a diffusion language model, which writes many tokens at once. Take one "
            "that writes token by token, or run it by `mlx_vlm.generate`.",
        )
    mend(model)
    return VisionModel(model), read_config(folder)
