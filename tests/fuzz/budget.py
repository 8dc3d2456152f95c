"""How long the long fuzzers run: `PIPPIN_FUZZ_MINUTES` in all, shared out; without it, minutes each."""

import os
from typing import Final

BY_REQUESTS: Final = 1 / 3  # of the time: requests of the OpenAPI document; the rest is for readers of bytes


def minutes() -> float | None:
    given = os.environ.get("PIPPIN_FUZZ_MINUTES")
    return float(given) if given else None


def seconds_of_bytes(targets: int, otherwise: int) -> int:
    """For one of so many targets of atheris."""
    given = minutes()
    return otherwise if given is None else max(1, int(given * 60 * (1 - BY_REQUESTS) / targets))


def seconds_of_requests(operations: int) -> float | None:
    """For one of so many operations of the document; None: as many requests as the test itself says."""
    given = minutes()
    return None if given is None else given * 60 * BY_REQUESTS / operations
