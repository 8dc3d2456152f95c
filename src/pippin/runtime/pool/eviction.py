"""Chooses the models to evict for another: a decision that changes nothing."""

from dataclasses import dataclass

from pippin.config.options.server import ServerOptions
from pippin.core.models import ModelKind
from pippin.runtime.pool.slot import Slot


@dataclass(frozen=True)
class Shortage:
    """What a load lacks: bytes of memory, and the number of models in excess, in all and of its kind."""

    bytes: int
    models: int
    kind: ModelKind
    of_kind: int = 0

    def __bool__(self) -> bool:
        return self.bytes > 0 or self.models > 0 or self.of_kind > 0

    def met_by(self, leaving: list[Slot]) -> bool:
        """Whether there is room once these models are gone."""
        return (
            sum(each.footprint for each in leaving) >= self.bytes
            and len(leaving) >= self.models
            and sum(each.info.kind == self.kind for each in leaving) >= self.of_kind
        )


def shortage(residents: list[Slot], new: Slot, budget: int, options: ServerOptions) -> Shortage:
    """The shortage for loading a model beside the resident ones, within a budget in bytes."""
    used = sum(resident.footprint for resident in residents)
    most, most_of_kind = options.max_models, options.max_models_per_kind
    models = 0 if most is None else len(residents) + 1 - most
    same = sum(resident.info.kind == new.info.kind for resident in residents)
    of_kind = 0 if most_of_kind is None else same + 1 - most_of_kind
    return Shortage(max(0, used + new.footprint - budget), max(0, models), new.info.kind, max(0, of_kind))


def victims(residents: list[Slot], missing: Shortage) -> list[Slot] | None:
    """The models to evict: idle before busy, least recently used first, no more than needed.

    None if evicting every unpinned model would not be enough.
    """
    chosen: list[Slot] = []
    movable = [resident for resident in residents if not resident.pinned]
    for resident in sorted(movable, key=lambda each: (each.claims > 0, each.last_used)):
        if missing.met_by(chosen):
            break
        chosen.append(resident)
    if not missing.met_by(chosen):
        return None
    # Later choices may have made earlier ones unnecessary; busy models are spared first.
    for resident in chosen[::-1]:
        rest = [each for each in chosen if each is not resident]
        if missing.met_by(rest):
            chosen = rest
    return chosen
