"""The repositories that a speech model needs beside its own: codecs, tokenizers and recordings.

mlx-audio fetches them by name when it loads the model, or when the model first speaks. They are listed here so that
Pippin can fetch them with the model and report missing ones. The names come from the modules of mlx-audio 0.6.2; a name
in the model's configuration takes precedence.

Most loads fail without their companions. Some do not: the first request fetches the codec or tokenizer, or mlx-audio
uses random weights for a codec. Those are marked `missed_late`, and only their absence makes Pippin refuse a model
before mlx-audio is asked. `tests/engines/speech/test_companions.py` checks this against mlx-audio's code.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pippin.catalog.folder_files import Json, text, whole
from pippin.catalog.names import is_repository
from pippin.core.models import Companion
from pippin.core.published import find_json, table

WEIGHTS: Final = ("*.safetensors", "*.json")
TOKENIZER: Final = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "config.json")
SNAC: Final = "mlx-community/snac_24khz"
DESCRIPT: Final = "mlx-community/descript-audio-codec-44khz"
MIMI: Final = Companion("kyutai/moshiko-pytorch-bf16", ("tokenizer-e351c8d8-checkpoint125.safetensors",))
ZONOS_SPEAKER: Final = "marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B"
S3_TOKENIZER: Final = "mlx-community/S3TokenizerV2"
BERT: Final = ("bert-base-uncased", "bert-base-multilingual-cased")
"""Repositories from the time when Hub names had no organisation."""
OWN_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
LANGUAGE_MODELS: Final = ("", "llama", "qwen2", "qwen3")
SMALL_QWEN: Final = 151936
"""The largest KugelAudio vocabulary that uses the tokenizer of the small Qwen 2.5."""


def companions_of(folder: Path, name: str, config: Json) -> tuple[Companion, ...]:
    """The companions of the speech model `name`. A local path in place of a repository counts as present."""
    family = _family(name, config)
    return tuple(
        each
        for each in _needed(family, folder, config)
        if is_repository(each.repository) or each.repository in BERT
    )


def _family(name: str, config: Json) -> str:
    """The family according to mlx-audio: by type, or by name for language models and for configurations without a
    type."""
    named = text(config.get("model_type")) or ""
    if named in LANGUAGE_MODELS and "outetts" in name.lower():
        return "outetts"
    if not named and "delay_pattern" in table(config.get("data")):
        return "dia"
    return "tada" if named == "llama" and "acoustic_dim" in config else named


def _needed(family: str, folder: Path, config: Json) -> Iterator[Companion]:
    match family:
        case "llama" | "qwen3":  # Orpheus and similar models
            yield Companion(SNAC, WEIGHTS)
            if family == "llama":
                yield from _tokenizer(folder, config, "mlx-community/orpheus-3b-0.1-ft-bf16")
        case "tada":
            yield Companion("HumeAI/tada-codec", WEIGHTS, missed_late=True)
            yield Companion("meta-llama/Llama-3.2-1B-Instruct", TOKENIZER, missed_late=True)
        case "sesame" | "csm" | "marvis":
            yield from _sesame(config)
        case "outetts":
            yield Companion("mlx-community/dac-speech-24khz-1.5kbps", WEIGHTS, missed_late=True)
            yield from _tokenizer(folder, config, "OuteAI/Llama-OuteTTS-1.0-1B")
        case "indextts":
            yield from _tokenizer(folder, config, "mlx-community/IndexTTS")
        case "bark":
            yield Companion(
                _named(config, "codec_path", "mlx-community/encodec-24khz-float32"), WEIGHTS, missed_late=True
            )
            yield Companion(BERT[1], TOKENIZER)
        case "melotts":
            yield Companion(BERT[0], TOKENIZER, missed_late=True)
        case "dia":
            yield Companion(DESCRIPT, WEIGHTS)
        case "zonos2":
            yield Companion(_named(config, "dac_model_id", DESCRIPT), WEIGHTS, missed_late=True)
            if not (folder / _named(config, "speaker_encoder_path", "speaker_encoder")).exists():
                yield Companion(
                    _named(config, "speaker_encoder_model_id", ZONOS_SPEAKER), WEIGHTS, needed=False
                )
        case "chatterbox" | "chatterbox_turbo":
            yield Companion(S3_TOKENIZER, WEIGHTS, missed_late=family == "chatterbox_turbo")
        case "rumik_oss":
            yield Companion(_named(config, "mimi_repo", MIMI.repository), MIMI.files, missed_late=True)
        case "higgs_audio":
            yield Companion("mlx-community/higgs-audio-v2-tokenizer", WEIGHTS)
        case _:
            yield from _named_by_configuration(family, folder, config)


def _named_by_configuration(family: str, folder: Path, config: Json) -> Iterator[Companion]:
    """Families whose folder may contain what others fetch, or whose configuration names it."""
    match family:
        case "echo_tts":
            yield Companion(
                _named(config, "fish_codec_repo", "jordand/fish-s1-dac-min"), WEIGHTS, missed_late=True
            )
        case "irodori_tts":
            if not (folder / "dacvae").is_dir():
                yield Companion(
                    _named(config, "dacvae_repo", "Aratako/Semantic-DACVAE-Japanese-32dim"),
                    WEIGHTS,
                    missed_late=True,
                )
            if not (folder / "tokenizer" / "tokenizer_config.json").is_file():
                reader = table(config.get("dit"))
                yield Companion(
                    _named(reader, "text_tokenizer_repo", "llm-jp/llm-jp-3-150m"), TOKENIZER, missed_late=True
                )
        case "moss_tts" | "moss_tts_delay" | "moss_tts_local" | "moss_tts_nano":
            if not (folder / "audio_tokenizer").is_dir():
                yield Companion(_moss_codec(family, config), WEIGHTS, missed_late=True)
        case "vibevoice" | "vibevoice_streaming":
            reader = find_json(folder / "preprocessor_config.json") or {}
            yield Companion(_named(reader, "language_model_pretrained_name", "Qwen/Qwen2.5-0.5B"), TOKENIZER)
        case "kugelaudio":
            vocabulary = whole(table(config.get("decoder_config")).get("vocab_size")) or 0
            size = "1.5B" if vocabulary <= SMALL_QWEN else "7B"
            yield Companion(f"Qwen/Qwen2.5-{size}", TOKENIZER)
        case "longcat_audiodit" | "audiodit" | "longcat":
            yield Companion(
                _named(config, "text_encoder_model", "google/umt5-base"), TOKENIZER, missed_late=True
            )
        case "dramabox" | "dramabox-tts":
            yield Companion(
                _named(config, "text_encoder", "mlx-community/gemma-3-12b-it-8bit"),
                (*WEIGHTS, *TOKENIZER),
                missed_late=True,
            )


def _sesame(config: Json) -> Iterator[Companion]:
    """The codec, the tokenizer, and the recordings of the two voices, which are stored with the tokenizer or the
    original."""
    yield MIMI
    own = text(config.get("text_tokenizer"))
    yield Companion(own or "unsloth/Llama-3.2-1B", TOKENIZER)
    if config.get("use_default_voice_prompt", True):
        yield Companion(own or "sesame/csm-1b", ("prompts/*.wav", "prompts/*.txt"), needed=False)


def _tokenizer(folder: Path, config: Json, usual: str) -> Iterator[Companion]:
    """The repository of a tokenizer that is not in the folder."""
    if not any((folder / name).is_file() for name in OWN_TOKENIZERS):
        yield Companion(_named(config, "tokenizer_name", usual), TOKENIZER)


def _moss_codec(family: str, config: Json) -> str:
    usual = (
        "mlx-community/MOSS-Audio-Tokenizer-Nano"
        if family == "moss_tts_nano"
        else "OpenMOSS-Team/MOSS-Audio-Tokenizer"
    )
    named = _named(config, "audio_tokenizer_name_or_path", usual)
    return _named(config, "audio_tokenizer_pretrained_name_or_path", named)


def _named(config: Json, key: str, usual: str) -> str:
    return text(config.get(key)) or usual
