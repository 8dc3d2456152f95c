"""The last report on each verified model, kept in Pippin's folder."""

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


def _path(model: str) -> Path:
    return home() / "verified" / f"{hashlib.blake2b(model.encode(), digest_size=12).hexdigest()}.json"
