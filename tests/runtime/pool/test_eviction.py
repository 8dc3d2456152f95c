"""Who leaves to make room."""

from hypothesis import given
from hypothesis import strategies as st

from pippin.runtime.pool.eviction import Resident, Shortage, shortage, victims

residents = st.lists(
    st.builds(
        Resident,
        id=st.text(min_size=1, max_size=4),
        kind=st.sampled_from(["language", "embeddings"]),
        footprint=st.integers(1, 100),
        busy=st.booleans(),
        pinned=st.booleans(),
        last_used=st.floats(0, 100),
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)


limits = st.none() | st.integers(1, 5)


@given(residents, st.integers(1, 150), st.integers(1, 300), limits, limits)
def test_what_is_chosen_suffices_spares_pinned_ones_and_holds_nobody_needless(
    present: list[Resident], need: int, budget: int, most: int | None, of_kind: int | None
) -> None:
    missing = shortage(present, need, "language", budget, most, of_kind)
    chosen = victims(present, missing)
    if chosen is None:
        assert not missing.met_by([each for each in present if not each.pinned])
        return
    assert not any(each.pinned for each in chosen)
    rest = [each for each in present if each not in chosen]
    assert not shortage(rest, need, "language", budget, most, of_kind) or need > budget
    for each in chosen:
        assert not missing.met_by([other for other in chosen if other is not each])


def test_idle_models_go_before_busy_ones_and_old_ones_first() -> None:
    present = [
        Resident("busy", "language", 10, True, False, 0.0),
        Resident("new", "language", 10, False, False, 9.0),
        Resident("old", "language", 10, False, False, 1.0),
    ]
    assert [each.id for each in victims(present, Shortage(10, 1, "language")) or []] == ["old"]
    assert [each.id for each in victims(present, Shortage(20, 0, "language")) or []] == ["old", "new"]


def test_one_too_many_of_a_kind_makes_only_that_kind_leave() -> None:
    present = [
        Resident("embedder", "embeddings", 10, False, False, 0.0),
        Resident("chat", "language", 10, False, False, 9.0),
    ]
    missing = shortage(present, 10, "language", 100, None, 1)
    assert [each.id for each in victims(present, missing) or []] == ["chat"]
    assert not shortage(present, 10, "speech", 100, None, 1)
