"""Parses an option's value from text or YAML, or refuses it in one clear line."""

import contextlib
import json
import math
import re
from typing import Any

import msgspec

from pippin.config.errors import ConfigError, nearest
from pippin.config.options.declaration import SECRET, Option
from pippin.core import decoding

TRUE = frozenset(("true", "yes", "on", "1"))
FALSE = frozenset(("false", "no", "off", "0"))
ABSENT = frozenset(("none", "null", ""))


def parse(option: Option, texts: list[str], where: str) -> Any:
    """The value of an option given as text: one string per flag, or one from a variable. `where` is for errors."""
    match option.shape:
        case "list":
            return convert(option, [item for text in texts for item in _items(text)], where)
        case "mapping":
            pairs = [pair for text in texts for pair in _pairs(option, text, where)]
            return convert(option, dict(pairs), where)
        case _:
            return convert(option, texts[-1], where)


def convert(option: Option, value: Any, where: str) -> Any:
    """A value of the option's type. Numbers and booleans may be given as text, and choices in any case."""
    if isinstance(value, str):
        value = _spelled(option, value)
    elif option.shape == "list" and value is not None and not isinstance(value, list | tuple):
        value = [value]
    try:
        converted = decoding.convert(value, option.type, strict=False)
    except msgspec.ValidationError:
        raise _refusal(option, value, where) from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise _refusal(option, value, where)
    return converted


def _spelled(option: Option, text: str) -> Any:
    text = text.strip()
    if option.shape == "switch" and text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    if option.shape == "list":
        return _items(text)
    if option.shape == "mapping":
        return dict(_pairs(option, text, option.name))
    if option.choices:
        return next((choice for choice in option.choices if choice.lower() == text.lower()), text)
    if text.lower() in ABSENT and option.default is None:
        return None
    return text


def _items(text: str) -> list[Any]:
    """The items of a list in one string: a JSON array, or comma-separated."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return list(json.loads(text))
    return [item.strip() for item in text.split(",") if item.strip()]


def _pairs(option: Option, text: str, where: str) -> list[tuple[str, Any]]:
    """The entries of a mapping in one string: a JSON object, or comma-separated NAME=VALUE pairs."""
    if text.lstrip().startswith("{"):
        try:
            entries = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{where}: not a JSON object ({error}).") from None
        return list(entries.items())
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise ConfigError(f"{where}: `{text}` is not {option.expects}.")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _refusal(option: Option, value: Any, where: str) -> ConfigError:
    hint = nearest(str(value), option.choices) if option.choices else ""
    shown = value if isinstance(value, str | int | float) else json.dumps(value, default=str)
    shown = "***" if option.name in SECRET else shown
    return ConfigError(f"{where}: `{shown}` is not {option.expects}.{hint}")


SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float | None:
    """Seconds of `90`, `5m`, `1h30m` or `-1`; None if the text is not a duration."""
    if re.fullmatch(r"-?\d{1,9}(\.\d{1,6})?", text):
        return float(text)
    if not re.fullmatch(r"-?(\d{1,9}(\.\d{1,6})?(ms|s|m|h|d))+", text):
        return None
    pieces = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    seconds = sum(float(number) * SECONDS[unit] for number, unit in pieces)
    return -seconds if text.startswith("-") else seconds
