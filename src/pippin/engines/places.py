"""Shares the places of an engine out among accounts, so that nobody's many requests keep another's first one waiting.

An account's place is a sequence that runs or whose prompt is computed. Where requests have the same priority, the
account with the fewest places comes next. An account without any takes a place from the one with most, if that has
several.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Claim(Protocol):
    """A request, in the queue or in its place."""

    @property
    def account(self) -> str: ...
    @property
    def priority(self) -> int:
        """Higher comes first."""
        ...

    @property
    def arrival(self) -> int:
        """Lower is older."""
        ...

    @property
    def count(self) -> int:
        """The places that it takes."""
        ...


C = TypeVar("C", bound=Claim)


def places_of(active: Iterable[Claim]) -> Counter[str]:
    """The places of each account that has any."""
    places: Counter[str] = Counter()
    for each in active:
        places[each.account] += each.count
    return places


def first_of(waiting: Iterable[C], places: Counter[str]) -> C:
    """The request to admit next: highest priority, then the account with the fewest places, then the oldest."""
    return min(waiting, key=lambda each: (-each.priority, places[each.account], each.arrival))


def yielding_to(first: Claim, active: Iterable[C], places: Counter[str]) -> list[C]:
    """The requests that make place for `first`, of an account without any, one after the other: the youngest of no
    higher priority of the account with most places, which keeps one. Empty if no account has several."""
    most = max(places.values(), default=0)
    if most < 2 or places[first.account]:
        return []
    several = [each for each in active if places[each.account] == most and each.priority <= first.priority]
    return sorted(several, key=lambda each: (each.priority, -each.arrival))[: most - 1]
