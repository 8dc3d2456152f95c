"""What a report says of each finding."""

from functools import cache
from importlib import resources
from typing import Any

import yaml

from pippin.core.verification import Finding, Severity


@cache
def known() -> dict[str, dict[str, Any]]:
    """The findings by their codes: `severity`, `text`, and where there is more to say `meaning` and `command`."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(data("findings.yaml"))
    return found


def data(file: str) -> str:
    """The text of a bundled file."""
    return resources.files(__package__).joinpath("data", file).read_text("utf-8")


def finding(code: str, severity: Severity | None = None, **facts: Any) -> Finding:
    """A finding with its facts, of which lists are written with commas; `severity` if not the usual one."""
    told = known()[code]
    written = {
        name: ", ".join(map(str, fact)) if isinstance(fact, list) else fact for name, fact in facts.items()
    }
    return Finding(
        code=code,
        severity=severity or told["severity"],
        text=told["text"].format(**written),
        meaning=told.get("meaning", ""),
        command=told.get("command", ""),
    )
