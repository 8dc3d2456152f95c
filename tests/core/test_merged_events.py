"""Joining deltas changes how often a reader is served, never what is said."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pippin.core.completion import collect
from pippin.core.events import Event, PartDelta, PartEnded, PartStarted, Token
from pippin.core.link import merged


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Two choices whose parts are told in turns."""
    events: list[Event] = []
    index, completed = [-1, -1], [0, 0]
    for choice in draw(st.lists(st.integers(0, 1), max_size=40)):
        if index[choice] < 0 or draw(st.integers(0, 4)) == 0:
            if index[choice] >= 0:
                events.append(PartEnded(choice, index[choice]))
            index[choice] += 1
            events.append(PartStarted(choice, index[choice], "text"))
        completed[choice] += 1
        text = draw(st.text("aé\n", max_size=3))
        tokens = (Token(completed[choice], text.encode("utf-8", "replace"), -0.5),)
        events.append(PartDelta(choice, index[choice], text, tokens, completed[choice]))
    return events


@given(streams())
def test_merged_events_fold_to_the_same_answer(events: list[Event]) -> None:
    joined = merged(events)
    assert collect(joined) == collect(events)
    assert len(joined) <= len(events)
    for first, second in pairwise(joined):
        if isinstance(first, PartDelta) and isinstance(second, PartDelta):
            assert (first.choice, first.index) != (second.choice, second.index)


def test_the_last_count_of_tokens_stands() -> None:
    assert merged([PartDelta(0, 0, "a", (), 3), PartDelta(0, 0, "b", (), 4)]) == [
        PartDelta(0, 0, "ab", (), 4)
    ]
