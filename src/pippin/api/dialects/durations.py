"""Lengths of time as Ollama's clients write them."""

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float | None:
    """Seconds of `90`, `5m`, `1h30m` or `-1`; None for what is no duration."""
    if re.fullmatch(r"-?\d{1,9}(\.\d{1,6})?", text):
        return float(text)
    if not re.fullmatch(r"-?(\d{1,9}(\.\d{1,6})?(ms|s|m|h|d))+", text):
        return None
    pieces = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    return -seconds if text.startswith("-") else seconds
