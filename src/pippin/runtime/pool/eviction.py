"""Chooses the models to evict for another: a decision on plain values."""

from dataclasses import dataclass

from pippin.core.models import ModelKind


@dataclass(frozen=True)
class Resident:
    """A model in memory, with the facts that decide whether it is evicted."""

    id: str
    kind: ModelKind
    footprint: int  # bytes
    busy: bool  # requests hold it
    pinned: bool
    last_used: float


@dataclass(frozen=True)
class Shortage:
    """What a load lacks: bytes of memory, and the number of models in excess, in all and of its kind."""

    bytes: int
    models: int
    kind: ModelKind
    of_kind: int = 0

    def __bool__(self) -> bool:
        return self.bytes > 0 or self.models > 0 or self.of_kind > 0

    def met_by(self, leaving: list[Resident]) -> bool:
        """Whether there is room once these models are gone."""
        return (
            sum(each.footprint for each in leaving) >= self.bytes
            and len(leaving) >= self.models
            and sum(each.kind == self.kind for each in leaving) >= self.of_kind
        )


def shortage(
    residents: list[Resident],
    need: int,
    kind: ModelKind,
    budget: int,
    most: int | None,
    most_of_kind: int | None,
) -> Shortage:
    """The shortage for loading a model of `need` bytes and this kind beside the resident ones."""
    used = sum(resident.footprint for resident in residents)
    models = 0 if most is None else len(residents) + 1 - most
    same = sum(resident.kind == kind for resident in residents)
    of_kind = 0 if most_of_kind is None else same + 1 - most_of_kind
    return Shortage(max(0, used + need - budget), max(0, models), kind, max(0, of_kind))


def victims(residents: list[Resident], missing: Shortage) -> list[Resident] | None:
    """The models to evict: idle before busy, least recently used first, no more than needed.

    None if evicting every unpinned model would not be enough.
    """
    chosen: list[Resident] = []
    movable = [resident for resident in residents if not resident.pinned]
    for resident in sorted(movable, key=lambda each: (each.busy, each.last_used)):
        if missing.met_by(chosen):
            break
        chosen.append(resident)
    return _without_needless(chosen, missing) if missing.met_by(chosen) else None


def _without_needless(chosen: list[Resident], missing: Shortage) -> list[Resident]:
    """Drop victims made unnecessary by later choices; busy ones are spared first."""
    kept = list(chosen)
    for resident in reversed(chosen):
        rest = [each for each in kept if each is not resident]
        if missing.met_by(rest):
            kept = rest
    return kept
