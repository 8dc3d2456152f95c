"""Stop strings never show, wherever tokens are cut, and what only looked like one does."""

from hypothesis import given
from hypothesis import strategies as st

from pippin.output.answer import StopFinder

TEXT = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


def run(stops: tuple[str, ...], pieces: list[str], *, include: bool = False) -> tuple[str, str | None]:
    finder, shown = StopFinder(stops, include=include), ""
    for piece in pieces:
        shown += finder.feed(piece)
        if finder.found is not None:
            return shown, finder.found
    return shown + finder.finish(), None


def cut(text: str, data: st.DataObject) -> list[str]:
    borders = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]


@given(text=TEXT, stops=STOPS, include=st.booleans(), data=st.data())
def test_what_is_shown_does_not_depend_on_the_cut(text, stops, include, data):
    whole = run(stops, [text], include=include)
    assert run(stops, cut(text, data), include=include) == whole
    assert run(stops, list(text), include=include) == whole


@given(text=TEXT, stops=STOPS, data=st.data())
def test_the_text_before_the_first_complete_stop_string_is_shown_and_no_more(text, stops, data):
    ends = [(text.index(stop) + len(stop), text.index(stop), stop) for stop in stops if stop in text]
    shown, found = run(stops, cut(text, data))
    if ends:
        _, begin, stop = min(ends)
        assert (shown, found) == (text[:begin], stop)
    else:
        assert (shown, found) == (text, None)


def test_held_back_text_is_released_as_soon_as_it_can_be():
    finder = StopFinder(("stop",))
    assert [finder.feed(piece) for piece in ("a st", "o", "ry")] == ["a ", "", "story"]
