"""Who leaves to make room."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.models import ModelInfo, ModelKind
from pippin.runtime.pool import Slot, fits, victims


def resident(
    id: str, kind: ModelKind, footprint: int, busy: bool = False, pinned: bool = False, last_used: float = 0.0
) -> Slot:
    slot = Slot(ModelInfo(id=id, kind=kind), ModelOptions(), pinned, footprint=footprint, last_used=last_used)
    slot.claimants["somebody"] += busy
    return slot


residents = st.lists(
    st.builds(
        resident,
        id=st.text(min_size=1, max_size=4),
        kind=st.sampled_from(["language", "embeddings"]),
        footprint=st.integers(1, 100),
        busy=st.booleans(),
        pinned=st.booleans(),
        last_used=st.floats(0, 100),
    ),
    max_size=8,
    unique_by=lambda each: each.info.id,
)


limits = st.none() | st.integers(1, 5)


@given(residents, st.integers(1, 150), st.integers(1, 300), limits, limits)
def test_what_is_chosen_suffices_spares_pinned_ones_and_holds_nobody_needless(
    present: list[Slot], need: int, budget: int, most: int | None, of_kind: int | None
) -> None:
    new, options = (
        resident("new", "language", need),
        ServerOptions(max_models=most, max_models_per_kind=of_kind),
    )

    def enough(leaving: list[Slot]) -> bool:
        return fits(new, [each for each in present if each not in leaving], budget, options)

    chosen = victims(present, lambda beside: fits(new, beside, budget, options))
    if chosen is None:
        assert not enough([each for each in present if not each.pinned])
        return
    assert not any(each.pinned for each in chosen)
    assert enough(chosen)
    for each in chosen:
        assert not enough([other for other in chosen if other is not each])


def leave(present: list[Slot], new: Slot, budget: int, **options: Any) -> list[str]:
    found = victims(present, lambda beside: fits(new, beside, budget, ServerOptions(**options)))
    return [each.info.id for each in found or []]


def test_idle_models_go_before_busy_ones_and_old_ones_first() -> None:
    present = [
        resident("busy", "language", 10, True, False, 0.0),
        resident("new", "language", 10, False, False, 9.0),
        resident("old", "language", 10, False, False, 1.0),
    ]
    new = resident("newest", "language", 10)
    assert leave(present, new, 30) == ["old"]
    assert leave(present, new, 100, max_models=3) == ["old"]
    assert leave(present, new, 20) == ["old", "new"]


def test_one_too_many_of_a_kind_makes_only_that_kind_leave() -> None:
    present = [
        resident("embedder", "embeddings", 10, False, False, 0.0),
        resident("chat", "language", 10, False, False, 9.0),
    ]
    assert leave(present, resident("new", "language", 10), 100, max_models_per_kind=1) == ["chat"]
    assert leave(present, resident("new", "speech", 10), 100, max_models_per_kind=1) == []


def test_a_model_larger_than_the_budget_makes_nobody_leave() -> None:
    present = [resident("chat", "language", 10)]
    assert (
        victims(present, lambda beside: fits(resident("new", "language", 40), beside, 30, ServerOptions()))
        is None
    )
