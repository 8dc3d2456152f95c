"""Converts values of the replaced servers to Pippin's options.

Each function that a term names takes the option and the replaced server's value, and returns the options that mean the
same. It raises `Refused` for a value that the replaced server would have refused too.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from pippin.config.values import FALSE, TRUE, parse_duration

LOG_LEVELS = {"trace": "debug", "success": "info", "critical": "error", "fatal": "error", "warn": "warning"}
APC_DISK_GB = 20.0  # mlx-vlm's
KV_BITS = (2, 3, 4, 5, 6, 8)
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
PORTS = {"http": 80, "https": 443}


class Converted(Struct, frozen=True):
    """The options for a foreign value, and a warning if they do not match it exactly."""

    options: Mapping[str, Any]
    warning: str | None = None


class Refused(ValueError):
    """The replaced server would have refused the value too. The message states what it should have been."""


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


def off_at_zero(option: str, value: Any) -> Converted:
    """0 meant unlimited, off or never, and `auto` by itself; in Pippin the option is left unset for that."""
    unset = str(value).strip().lower() == "auto" or number(value) == 0
    return Converted({} if unset else {option: value})


def sequences(option: str, value: Any) -> Converted:
    """0 meant an unlimited batch; Pippin's is always limited, and further requests wait."""
    if number(value) != 0:
        return Converted({option: value})
    return Converted(
        {}, "every batch has a limit here, and what goes beyond it waits: give a number from 1 on"
    )


def block_of_drafts(option: str, value: Any) -> Converted:
    """A drafter block in mlx-vlm is the last token plus the draft; at least one token is drafted."""
    size = number(value)
    if size != int(size) or size < 1:
        raise Refused("a whole number from 1 on")
    return Converted({option: max(int(size) - 1, 1)})


def kv_bits(option: str, value: Any) -> Converted:
    """Bits of the KV cache, or of its keys or values. Unsupported numbers are refused, never rounded."""
    bits = number(value)
    if bits == 0:
        return Converted({option: None})
    if 8 < bits <= 16:
        return Converted({option: None}, f"a KV cache of {value} bits is not quantised at all")
    if bits not in KV_BITS:
        raise Refused("2, 3, 4, 5, 6 or 8; instead of 3.5 give kv_key_bits 3 and kv_value_bits 4")
    return Converted({option: int(bits)})


def kv_scheme(option: str, value: Any) -> Converted:
    """How keys, values or both are kept; `kv_bits` says in how many bits."""
    if str(value).strip().lower() != "uniform":
        raise Refused(
            "uniform: TurboQuant is not here; start without it, and keys and values are scaled in groups"
        )
    return Converted({})


def repetition_penalty(option: str, value: Any) -> Converted:
    """Pippin's neutral value is 1; mlx-openai-server's is 0."""
    return Converted({option: 1.0 if number(value) == 0 else value})


def log_level(option: str, value: Any) -> Converted:
    level = str(value).strip().lower()
    return Converted({option: LOG_LEVELS.get(level, level)})


def chosen(meanings: Mapping[str, Any], value: Any) -> Any:
    word = str(value).strip().lower()
    if word not in meanings:
        raise Refused("one of " + ", ".join(meanings))
    return meanings[word]


def cache_percent(option: str, value: Any) -> Converted:
    share = number(value)
    return Converted({option: share / 100 if share > 1 else share})


def cache_entries(option: str, value: Any) -> Converted:
    """0 entries meant no cache."""
    return Converted({"prefix_cache": False} if number(value) == 0 else {option: value})


def cap_to_window(option: str, value: Any) -> Converted:
    """A limit far beyond any window meant the window itself."""
    return Converted({option: None if number(value) >= 1_000_000 else value})


def json_object(option: str, value: Any) -> Converted:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, dict):
        raise Refused("a JSON object")
    return Converted({option: value})


def debug_of_one(option: str, value: Any) -> Converted:
    """One model's debug switch; Pippin's log has one level for all models."""
    if truth(value):
        return Converted({}, f"the log has one level for all models: set `server.{option}: DEBUG`")
    return Converted({})


def gibibytes(option: str, value: Any) -> Converted:
    """GB as MiB; `auto` leaves the size to Pippin."""
    return Converted({} if str(value).strip().lower() == "auto" else {option: int(number(value) * 1024)})


def apc_enabled(option: str, value: Any) -> Converted:
    """mlx-vlm's cache has a disk tier by default, with its own folder and size."""
    if not truth(value):
        return Converted({option: False})
    return Converted({option: True, "cache_dir": "~/.cache/mlx-vlm/apc", "cache_disk_max_gb": APC_DISK_GB})


def disk_enabled(option: str, value: Any) -> Converted:
    return Converted({} if truth(value) else {option: None})


def folders(option: str, value: Any) -> Converted:
    """A search path, separated as on this system, or by commas."""
    parts = str(value).replace(os.pathsep, ",").split(",")
    return Converted({option: [part.strip() for part in parts if part.strip()]})


def size(option: str, value: Any) -> Converted:
    """A size such as `8GB`, or bytes, as whole MiB or as GiB. `auto`, 0 and astronomical sizes leave it to Pippin."""
    text = str(value).strip().upper()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", "0" if text == "AUTO" else text)
    if found is None:
        raise Refused("a size such as 8GB")
    size = float(found[1]) * SIZES[found[2]]
    if not 0 < size < 1 << 60:
        return Converted({})
    return Converted({option: int(size) >> 20 if option.endswith("_mb") else size / (1 << 30)})


def square(option: str, value: Any) -> Converted:
    """The side of the largest square as its area; 0 meant unlimited."""
    return off_at_zero(option, int(number(value)) ** 2)


def address(option: str, value: Any) -> Converted:
    """HOST, HOST:PORT, :PORT or an address with its scheme."""
    text = str(value).strip()
    try:
        place = urlsplit(text if "://" in text else f"//{text}")
        parts = {option: place.hostname, "port": place.port or PORTS.get(place.scheme)}
    except ValueError:
        raise Refused("an address such as 127.0.0.1:11434") from None
    return Converted({name: part for name, part in parts.items() if part})


def seconds(option: str, value: Any) -> Converted:
    """A duration such as `5m`; below 0 it meant for ever."""
    duration = parse_duration(str(value).strip())
    if duration is None:
        raise Refused("a duration such as 90 or 5m")
    return Converted({option: None if duration < 0 else duration})


def origins(option: str, value: Any) -> Converted:
    """Origins are compared whole."""
    if re.search(r"[^,\s]\*|\*[^,\s]", str(value)):
        raise Refused("a list of whole origins, such as http://localhost:3000, or `*` alone")
    return Converted({option: value})


def speculative(option: str, value: Any) -> Converted:
    """Rapid-MLX's JSON of what drafts."""
    given = json_object(option, value).options[option]
    match given:
        case {"method": "mtp"}:
            drafter: dict[str, Any] = {"mtp": True}
        case {"method": "suffix"}:
            drafter = {"prompt_lookup": True}
        case {"method": "dflash", "model": str(model)}:
            drafter = {option: "dflash", "draft_model_path": model}
        case _:
            raise Refused("of the method `mtp`, `suffix`, or `dflash` with its `model`")
    count = given.get("num_speculative_tokens")
    return Converted(drafter | ({"num_draft_tokens": count} if count else {}))
