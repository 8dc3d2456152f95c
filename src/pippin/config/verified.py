"""The last report on each verified model, and how near its batches were to single sequences when it was last loaded,
kept in Pippin's folder."""

import contextlib
import hashlib
from pathlib import Path

import msgspec

from pippin.config.environment import home
from pippin.core.decoding import from_json
from pippin.core.verification import Report


def keep(report: Report) -> None:
    """Write a report in place of the model's last one. Raises `OSError`."""
    path = _path(report.model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(report))


def last_report(model: str) -> Report | None:
    """The last report on a model; None for one that was not verified, or whose report can't be read."""
    try:
        return from_json(_path(model).read_bytes(), Report)
    except (OSError, msgspec.DecodeError):
        return None


def keep_agreement(model: str, told: str) -> None:
    """Write what the trials of a load found. A home that can't be written costs that alone."""
    with contextlib.suppress(OSError):
        (path := _path(model).with_suffix(".trials")).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(told)


def last_agreement(model: str) -> str:
    """What the trials of the last load found; empty for a model that was never loaded."""
    with contextlib.suppress(OSError):
        return _path(model).with_suffix(".trials").read_text()
    return ""


def _path(model: str) -> Path:
    return home() / "verified" / f"{hashlib.blake2b(model.encode(), digest_size=12).hexdigest()}.json"
