"""Who leaves to make room."""

from hypothesis import given
from hypothesis import strategies as st

from pippin.runtime.pool.eviction import Resident, Shortage, shortage, victims

residents = st.lists(
    st.builds(
        Resident,
        id=st.text(min_size=1, max_size=4),
        footprint=st.integers(1, 100),
        busy=st.booleans(),
        pinned=st.booleans(),
        last_used=st.floats(0, 100),
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)


@given(residents, st.integers(1, 150), st.integers(1, 300), st.none() | st.integers(1, 5))
def test_what_is_chosen_suffices_spares_pinned_ones_and_holds_nobody_needless(
    present: list[Resident], need: int, budget: int, most: int | None
) -> None:
    missing = shortage(present, need, budget, most)
    chosen = victims(present, missing)
    if chosen is None:
        movable = [each for each in present if not each.pinned]
        assert sum(e.footprint for e in movable) < missing.bytes or len(movable) < missing.models
        return
    assert not any(each.pinned for each in chosen)
    rest = [each for each in present if each not in chosen]
    assert not shortage(rest, need, budget, most) or need > budget
    for each in chosen:
        fewer = [other for other in chosen if other is not each]
        enough = sum(e.footprint for e in fewer) >= missing.bytes and len(fewer) >= missing.models
        assert not enough


def test_idle_models_go_before_busy_ones_and_old_ones_first() -> None:
    present = [
        Resident("busy", 10, True, False, 0.0),
        Resident("new", 10, False, False, 9.0),
        Resident("old", 10, False, False, 1.0),
    ]
    assert [each.id for each in victims(present, Shortage(10, 1)) or []] == ["old"]
    assert [each.id for each in victims(present, Shortage(20, 0)) or []] == ["old", "new"]
