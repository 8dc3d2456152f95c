"""Determines a model's kind from its configuration."""

import re
from pathlib import Path
from typing import Final, Literal

from pippin.core.decoding import from_json
from pippin.core.models import ModelKind
from pippin.core.published import Json, object_in, table, text

MODEL_TYPES: Final = from_json(
    Path(__file__).with_name("model_types.json").read_bytes(),
    dict[Literal["embeddings", "decisions", "transcription", "speech"], frozenset[str]],
)
"""The `model_type`s of each kind that no other sign tells."""
LANGUAGE_MODEL: Final = re.compile(r"(?!.*(TTS|ASR|Speech|Audio|Voice)).*ForCausalLM")
"""Architectures of language models. Needed because `glm` and `mimo` are also speech models in mlx-audio's registry."""
SPOKEN_NAMES: Final = ("kokoro", "orpheus", "outetts", "-tts", "_tts")
"""Speech models that reuse a language model's `model_type` are identified by name, as in mlx-audio."""
VOICES: Final[dict[str, ModelKind]] = {"tts": "speech", "stt": "transcription"}
"""The kinds of mlx-audio's registry that are served."""


def kind_of(folder: Path, name: str, config: Json) -> ModelKind | None:
    """The kind of the model `name` in `folder`; None if no file identifies it."""
    if (folder / "model_index.json").is_file() or (
        (folder / "transformer").is_dir() and (folder / "vae").is_dir()
    ):
        return "images"
    model_type = text(config.get("model_type")) or ""
    architectures = config.get("architectures")
    listed = architectures if isinstance(architectures, list) else []
    named = [item for item in listed if isinstance(item, str)]
    # An LFM2-VL checkpoint with d1's decision readout shows it in its `auto_map`.
    made_by = text(table(config.get("auto_map")).get("AutoModel")) or ""
    decides = model_type == "lfm2_vl" and made_by.endswith("D1Model")
    if model_type in MODEL_TYPES["decisions"] or decides:
        return "decisions"
    lower = name.rpartition("/")[2].lower()
    compares = object_in(folder / SENTENCES).get("model_type") == "CrossEncoder"
    if compares or any(item.endswith("ForSequenceClassification") for item in named) or "reranker" in lower:
        return "reranking"
    marks = (folder / "modules.json", folder / SENTENCES)
    embeds = any(mark.is_file() for mark in marks) or model_type in MODEL_TYPES["embeddings"]
    if embeds or "embedding" in lower:
        return "embeddings"
    if model_type == "vibevoice" and "asr" in lower:  # used by models of both kinds
        return "transcription"
    if (
        model_type in MODEL_TYPES["speech"]
        or "istftnet" in config
        or any(part in lower for part in SPOKEN_NAMES)
    ):
        return "speech"
    if (
        model_type in MODEL_TYPES["transcription"]
        or "n_audio_ctx" in config
        or "nemo.collections.asr" in str(config.get("target"))
    ):
        return "transcription"
    spoken = not named or not all(LANGUAGE_MODEL.fullmatch(item) for item in named)
    # The registry does not know the language-model architectures that some speech models reuse; names identify those
    # above.
    if spoken and (voice := VOICES.get(_registered(config, model_type)[0])) is not None:
        return voice
    if model_type or named:
        return "language"
    if "delay_pattern" in table(config.get("data")):  # Dia's configuration has no type
        return "speech"
    return None


SENTENCES: Final = "config_sentence_transformers.json"
OTHER_SOUND: Final = {
    "sts": "turns speech into speech",
    "codec": "is a codec of sound, and part of other models",
    "lid": "tells which language is spoken",
    "vad": "tells speech from silence",
    "music": "makes music",
}
"""The other kinds of mlx-audio's models, which Pippin does not serve."""

WITHOUT_A_TYPE: Final = {
    "sam_audio": {"audio_codec", "text_encoder", "transformer"},
    "mossformer2_se": {"win_len", "win_inc", "num_mels", "out_channels_final"},
}
"""Speech-to-speech models, identified by the keys of their configuration, as in mlx-audio."""


def other_sound(config: Json) -> str | None:
    """What an unsupported sound model does, as the end of a sentence; None for all other models."""
    named = text(config.get("model_type"))
    if named is None and str(config.get("model_version")).startswith("DeepFilterNet"):
        named = "deepfilternet"
    if named is None:
        named = next((name for name, keys in WITHOUT_A_TYPE.items() if keys <= config.keys()), None)
    if named == "nemotron_voicechat":  # mlx-vlm serves it as a language model with audio input
        return None
    kind, known = _registered(config, named or "")
    return f"{OTHER_SOUND[kind]} (`{known}`)" if kind in OTHER_SOUND else None


def _registered(config: Json, model_type: str) -> tuple[str, str]:
    """What the installed mlx-audio's registry finds in a configuration, without a model's code: the kind (`tts`, `stt`,
    `sts`, `codec` and so on, empty for none) and the type, which is `model_type` where the library finds none."""
    try:
        from mlx_audio.registry import classify_model, model_type_from_config
    except ImportError:
        return "", model_type
    try:
        named = str(model_type_from_config(config) or model_type)
    except (TypeError, AttributeError):  # the library does not check the types in a configuration
        return "", ""
    return (classify_model(named) if named else None) or "", named


def sees(config: Json) -> bool:
    """Whether the model takes images."""
    return bool(table(config.get("vision_config"))) or "vision_tower" in config or "mm_vision_tower" in config


def watches(config: Json) -> bool:
    """Whether the model takes video."""
    return sees(config) and ("video_token_id" in config or "video_token_index" in config)
