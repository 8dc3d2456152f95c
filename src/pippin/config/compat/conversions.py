"""Converts values of the replaced servers to Pippin's options."""

import json
import os
from pathlib import Path
from typing import Any

from pippin.config.compat.terms import Convert, Converted, Refused
from pippin.config.values import FALSE, TRUE

KINDS = {
    "lm": "language",
    "multimodal": "language",
    "image-generation": "images",
    "image-edit": "images",
    "embeddings": "embeddings",
    "whisper": "transcription",
}
LOG_LEVELS = {"trace": "debug", "success": "info", "critical": "error", "fatal": "error", "warn": "warning"}


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Refused("a number") from None


def truth(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in TRUE | FALSE:
        raise Refused("true or false")
    return text in TRUE


def set_to(option: str, value: Any) -> Convert:
    """A switch that stands for a fixed value; a key or variable applies only if true."""

    def convert(given: Any) -> Converted:
        return Converted({option: value} if truth(given) else {})

    return convert


def opposite(option: str) -> Convert:
    return lambda value: Converted({option: not truth(value)})


def off_at_zero(option: str) -> Convert:
    """0 meant unlimited, or off; in Pippin the option is left unset for that."""
    return lambda value: Converted({} if number(value) == 0 else {option: value})


def sequences(value: Any) -> Converted:
    """0 meant an unlimited batch; Pippin's is always limited, and further requests wait."""
    if number(value) != 0:
        return Converted({"max_num_seqs": value})
    return Converted(
        {}, "every batch has a limit here, and what goes beyond it waits: give a number from 1 on"
    )


def block_of_drafts(value: Any) -> Converted:
    """A drafter block in mlx-vlm is the last token plus the draft; at least one token is drafted."""
    size = number(value)
    if size != int(size) or size < 1:
        raise Refused("a whole number from 1 on")
    return Converted({"num_draft_tokens": max(int(size) - 1, 1)})


APC_DISK_GB = 20.0  # mlx-vlm's
KV_BITS = (2, 3, 4, 5, 6, 8)


def bits_of(option: str) -> Convert:
    """Bits of the KV cache, or of its keys or values. Unsupported numbers are refused, never rounded."""

    def convert(value: Any) -> Converted:
        bits = number(value)
        if bits == 0:
            return Converted({option: None})
        if 8 < bits <= 16:
            return Converted({option: None}, f"a KV cache of {value} bits is not quantised at all")
        if bits not in KV_BITS:
            raise Refused("2, 3, 4, 5, 6 or 8; instead of 3.5 give kv_key_bits 3 and kv_value_bits 4")
        return Converted({option: int(bits)})

    return convert


kv_bits = bits_of("kv_bits")


def kv_scheme(value: Any) -> Converted:
    """How keys, values or both are kept; `kv_bits` says in how many bits."""
    if str(value).strip().lower() != "uniform":
        raise Refused(
            "uniform: TurboQuant is not here; start without it, and keys and values are scaled in groups"
        )
    return Converted({})


def repetition_penalty(value: Any) -> Converted:
    """Pippin's neutral value is 1; mlx-openai-server's is 0."""
    return Converted({"repetition_penalty": 1.0 if number(value) == 0 else value})


def log_level(value: Any) -> Converted:
    level = str(value).strip().lower()
    return Converted({"log_level": LOG_LEVELS.get(level, level)})


def model_kind(option: str) -> Convert:
    def convert(value: Any) -> Converted:
        kind = str(value).strip().lower()
        if kind not in KINDS:
            raise Refused("one of " + ", ".join(KINDS))
        return Converted({option: KINDS[kind]})

    return convert


def max_bytes(value: Any) -> Converted:
    """A prompt cache's bytes as MiB; astronomical sizes meant unlimited."""
    size = number(value)
    return Converted({} if size >= 1 << 60 else {"cache_memory_mb": int(size) >> 20})


def cache_percent(value: Any) -> Converted:
    share = number(value)
    return Converted({"cache_memory_percent": share / 100 if share > 1 else share})


def no_log_file(value: Any) -> Converted:
    return Converted({"log_file": None} if truth(value) else {})


def idle_seconds(value: Any) -> Converted:
    """0 meant never unload."""
    return Converted({} if number(value) == 0 else {"idle_timeout": value})


def cache_entries(value: Any) -> Converted:
    """0 entries meant no cache."""
    return Converted({"prefix_cache": False} if number(value) == 0 else {"prompt_cache_size": value})


def cap_to_window(option: str) -> Convert:
    """A limit far beyond any window meant the window itself."""
    return lambda value: Converted({option: None if number(value) >= 1_000_000 else value})


def json_object(option: str) -> Convert:
    def convert(value: Any) -> Converted:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise Refused("a JSON object") from None
        if not isinstance(value, dict):
            raise Refused("a JSON object")
        return Converted({option: value})

    return convert


def debug_of_one(value: Any) -> Converted:
    """One model's debug switch; Pippin's log has one level for all models."""
    if truth(value):
        return Converted({}, "the log has one level for all models: set `server.log_level: DEBUG`")
    return Converted({})


def debug(value: Any) -> Converted:
    return Converted({"log_level": "debug"} if truth(value) else {})


def gibibytes(option: str) -> Convert:
    """GB as MiB; `auto` leaves the size to Pippin."""
    return lambda value: Converted(
        {} if str(value).strip().lower() == "auto" else {option: int(number(value) * 1024)}
    )


def unless_auto(option: str) -> Convert:
    """`auto` and 0 leave the value to Pippin."""
    return lambda value: Converted({} if str(value).strip().lower() in ("auto", "0") else {option: value})


def apc_enabled(value: Any) -> Converted:
    """mlx-vlm's cache has a disk tier by default, with its own folder and size."""
    if not truth(value):
        return Converted({"prefix_cache": False})
    return Converted(
        {"prefix_cache": True, "cache_dir": "~/.cache/mlx-vlm/apc", "cache_disk_max_gb": APC_DISK_GB}
    )


def apc_home(value: Any) -> Converted:
    return Converted({"cache_dir": str(Path(value) / "apc")})


def disk_enabled(value: Any) -> Converted:
    return Converted({} if truth(value) else {"cache_dir": None})


def folders(value: Any) -> Converted:
    """A search path, separated as on this system, or by commas."""
    parts = str(value).replace(os.pathsep, ",").split(",")
    return Converted({"model_dirs": [part.strip() for part in parts if part.strip()]})


def on_demand(value: Any) -> Converted:
    """Load on the first request, and unload after an idle minute unless the entry says otherwise."""
    return Converted({"preload": False, "idle_timeout": 60.0} if truth(value) else {"preload": True})


def one_at_a_time(value: Any) -> Converted:
    return Converted({"max_num_seqs": 1} if truth(value) else {})
