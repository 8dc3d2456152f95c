"""Adds up the metrics of several API processes."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from pippin.service.lending.messages import Family, Sample

ONGOING: Final = "gauge"
"""The type of metrics that end with the process that counted them."""


class Counted:
    """The last metrics reported by one process."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        self._waiting: asyncio.Future[None] | None = None

    def take(self, families: list[Family]) -> None:
        self.families = families
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)

    async def next(self, seconds: float) -> None:
        """Wait for the next report, at most `seconds`."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._waiting), seconds)

    def joined(self, departed: list[Family]) -> list[Family]:
        """The counts that outlive the process, added to those of processes that ended before."""
        return added([departed, [family for family in self.families if family.type != ONGOING]])


def added(parts: Iterable[list[Family]]) -> list[Family]:
    """The sum of several processes' metrics, sample by sample."""
    families: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for part in parts:
        for family in part:
            families.setdefault(family.name, family)
            of_family = sums.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sample.labels.items()))
                of_family[key] = of_family.get(key, 0.0) + sample.value
    return [
        Family(
            name,
            family.text,
            family.type,
            [Sample(sample, dict(labels), value) for (sample, labels), value in sums[name].items()],
        )
        for name, family in families.items()
    ]
