"""Which models make room for another: a decision on plain values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Resident:
    """A model in memory, as far as it matters to who leaves."""

    id: str
    footprint: int  # bytes
    busy: bool  # requests hold it
    pinned: bool
    last_used: float


@dataclass(frozen=True)
class Shortage:
    """What is missing for a load: bytes of memory, and how many models there are too many."""

    bytes: int
    models: int

    def __bool__(self) -> bool:
        return self.bytes > 0 or self.models > 0


def shortage(residents: list[Resident], need: int, budget: int, most: int | None) -> Shortage:
    """What a model of `need` bytes lacks beside the resident ones."""
    used = sum(resident.footprint for resident in residents)
    models = 0 if most is None else len(residents) + 1 - most
    return Shortage(bytes=max(0, used + need - budget), models=max(0, models))


def victims(residents: list[Resident], missing: Shortage) -> list[Resident] | None:
    """The models to unload: idle before busy, least recently used first, no more than needed.

    None where even all unpinned ones would not do.
    """
    chosen: list[Resident] = []
    freed = 0
    movable = [resident for resident in residents if not resident.pinned]
    for resident in sorted(movable, key=lambda each: (each.busy, each.last_used)):
        if freed >= missing.bytes and len(chosen) >= missing.models:
            break
        chosen.append(resident)
        freed += resident.footprint
    if freed < missing.bytes or len(chosen) < missing.models:
        return None
    return _without_needless(chosen, missing)


def _without_needless(chosen: list[Resident], missing: Shortage) -> list[Resident]:
    """A large model chosen late may make earlier, smaller ones needless; busy ones are spared first."""
    kept = list(chosen)
    for resident in reversed(chosen):
        rest = [each for each in kept if each is not resident]
        if sum(each.footprint for each in rest) >= missing.bytes and len(rest) >= missing.models:
            kept = rest
    return kept
