"""What the files of a Whisper folder say beside its weights: read, held against the model, or refused by name."""

import logging
import math
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import mlx.core as mx
import mlx.nn as nn
from msgspec import Meta, Struct

from pippin.core.errors import ServerError
from pippin.core.parameters import OF_LENGTHS, REPETITION_PENALTY, OfEveryAnswer, left_out
from pippin.core.published import fields_in, object_in, table
from pippin.engines.language.text.tokenizer import ids_in
from pippin.engines.whisper import LAST_TIME, TIME_STEP

log = logging.getLogger(__name__)

FILE: Final = "generation_config.json"

UNREAD: Final[dict[str, Any]] = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "max_source_positions": 1500,
    "median_filter_width": 7,
    "sampling_rate": 16000,
    "n_fft": 400,
    "hop_length": 160,
    "chunk_length": 30,
    "padding_value": 0.0,
    "dither": 0.0,
}
"""Fields of Whisper's config.json, preprocessor_config.json and processor_config.json that mlx-audio does not read,
with the value that it takes for granted."""

TOKENS: Final = {
    "decoder_start_token_id": "sot",
    "no_timestamps_token_id": "no_timestamps",
    "prev_sot_token_id": "sot_prev",
    "eos_token_id": "eot",
}
"""Fields that name a token, and what the tokenizer calls it."""

PASSED: Final = {
    "compression_ratio_threshold": ("compression_ratio_threshold", float),
    "logprob_threshold": ("logprob_threshold", float),
    "no_speech_threshold": ("no_speech_threshold", float),
    "condition_on_prev_tokens": ("condition_on_previous_text", bool),
}
"""Fields that are arguments of mlx-audio's `generate`, by its names."""

OTHERS: Final = ("stop_strings", "min_new_tokens", "no_repeat_ngram_size")
READ: Final[dict[str, Any]] = {
    **get_type_hints(OfEveryAnswer, include_extras=True),
    **{field: type_ for field, (_, type_) in PASSED.items()},
    "max_initial_timestamp_index": Annotated[int, Meta(ge=0)],
    "forced_decoder_ids": tuple[tuple[int, int | None], ...],
    "language": str,
    "is_multilingual": bool,
    "lang_to_id": dict[str, int],
    "task_to_id": dict[str, int],
    "alignment_heads": tuple[tuple[int, int], ...],
    REPETITION_PENALTY.name: REPETITION_PENALTY.in_checkpoints,
}
"""The fields of generation_config.json that are read, and their types."""


class Settings(Struct, frozen=True):
    """How a model's tokens are chosen."""

    biases: dict[int, float]
    first: tuple[int, ...]  # tokens that begin no text
    latest: int | None  # where the first time lies at most, in steps of 0.02 seconds
    repetition_penalty: float | None = None
    language: str | None = None  # of requests that name none
    languages: frozenset[str] = frozenset()  # that are detected; empty for all
    arguments: dict[str, Any] = {}
    alignment_heads: tuple[tuple[int, int], ...] = ()  # layer and head, which tell when a word is heard


def features_in(folder: Path) -> dict[str, Any]:
    """What a folder says of the features of sound, as transformers reads it."""
    nested = object_in(folder / "processor_config.json").get("feature_extractor")
    return table(nested) or object_in(folder / "preprocessor_config.json")


def refuse_unread(model: nn.Module, folder: Path, arrays: dict[str, mx.array]) -> None:
    """Raises `ValueError` for a setting of config.json or of the sound's features that mlx-audio does not read."""
    config = object_in(folder / "config.json")
    told = {**features_in(folder), **config}
    wide = 4 * model.dims.n_audio_state
    sizes = {"encoder_ffn_dim": wide, "decoder_ffn_dim": wide, "feature_size": model.dims.n_mels}
    for field, usual in (UNREAD | sizes).items():
        if told.get(field) not in (None, usual):
            raise ValueError(f"{field} {told[field]!r} is not read by its class")
    if config.get("tie_word_embeddings") is False and "proj_out.weight" in arrays:
        raise ValueError("proj_out.weight is not the embedding, for which its class takes it")


def read_settings(model: nn.Module, tokenizer: Any, folder: Path, name: str) -> Settings:
    """What generation_config.json says, as transformers reads it; OpenAI's own choice without one. Raises
    `ServerError("load_failed")` naming a field that can't be honoured."""
    if not (folder / FILE).is_file():
        kept = frozenset({tokenizer.transcribe, tokenizer.translate, tokenizer.sot, tokenizer.sot_prev})
        kept |= {tokenizer.sot_lm, *tokenizer.non_speech_tokens, *ids_in(tokenizer.no_speech)}
        return Settings(dict.fromkeys(kept, -math.inf), (*tokenizer.encode(" "), tokenizer.eot), 50)
    told, said = object_in(folder / FILE), fields_in(folder, FILE, **READ)
    if wrong := _other_tokens(tokenizer, told, said):
        more = f"{', '.join(wrong[:4])}: fetch it and the tokenizer of the publisher again"
        raise _refused(name, f"names tokens that are others in the tokenizer: {more}")
    asked = OfEveryAnswer(**{field: said[field] for field in get_type_hints(OfEveryAnswer)})
    lost = [field for field in OTHERS if said[field]] + ["sequence_bias"] * bool(asked.several)
    if said["is_multilingual"] not in (None, model.is_multilingual):
        lost.append("is_multilingual")
    if lost:
        raise _refused(name, f"sets {', '.join(lost)} to what Whisper's class does not read")
    if fields := {*left_out(told)} - OF_LENGTHS:
        log.warning("%s sets %s, which change no answer here", FILE, ", ".join(sorted(fields)))
    heads = said["alignment_heads"] or ()
    layers, each = model.dims.n_text_layer, model.dims.n_text_head
    if wrong := [pair for pair in heads if not (0 <= pair[0] < layers and 0 <= pair[1] < each)]:
        raise _refused(name, f"has alignment_heads {wrong[0]}, which the model lacks")
    rows = model.dims.n_vocab
    biases = asked.biases(rows, (tokenizer.eot,))
    return Settings(
        biases | {id_: -math.inf for id_ in said["suppress_tokens"] or () if 0 <= id_ < rows},
        tuple(id_ for id_ in said["begin_suppress_tokens"] or () if 0 <= id_ < rows),
        said["max_initial_timestamp_index"],
        said[REPETITION_PENALTY.name],
        _plain(said["language"] or "") or _forced_language(tokenizer, told, said, folder),
        frozenset(map(_plain, said["lang_to_id"] or ())),
        {named: said[field] for field, (named, _) in PASSED.items() if said[field] is not None},
        heads,
    )


def _other_tokens(tokenizer: Any, told: dict[str, Any], said: dict[str, Any]) -> list[str]:
    """The fields that give a token another id than the tokenizer, whose ids count here, and a time that is not as many
    ids behind the first as its seconds say."""
    words = tokenizer.hf_tokenizer.get_vocab()
    marks = {
        **(said["lang_to_id"] or {}),
        **{f"<|{task}|>": id_ for task, id_ in (said["task_to_id"] or {}).items()},
        f"<|{LAST_TIME:.2f}|>": tokenizer.timestamp_begin + round(LAST_TIME / TIME_STEP),
    }
    own = {field: getattr(tokenizer, attribute) for field, attribute in TOKENS.items()}
    wrong = [f"{field} {told[field]}" for field in own if ids_in(told.get(field)) - {own[field]}]
    return wrong + [f"{mark} {id_}" for mark, id_ in marks.items() if words.get(mark) != id_]


def _forced_language(tokenizer: Any, told: dict[str, Any], said: dict[str, Any], folder: Path) -> str | None:
    """The language of `forced_decoder_ids`, which transformers reads where nothing newer is said."""
    forced: Any = said["forced_decoder_ids"] or object_in(folder / "config.json").get("forced_decoder_ids")
    if told.get("task") is not None or not forced or forced[0][0] != 1 or forced[0][1] is None:
        return None
    word = tokenizer.hf_tokenizer.convert_ids_to_tokens(forced[0][1])
    return _plain(word) if forced[0][1] in tokenizer.all_language_tokens else None


def _plain(mark: str) -> str:
    return mark.removeprefix("<|").removesuffix("|>")


def _refused(name: str, what: str) -> ServerError:
    return ServerError("load_failed", f"{FILE} of {name} {what}.")
