"""How answers are drawn."""

import io

import pytest
from rich.console import Console
from rich.live import Live

from pippin.cli.chat.client import Called, Ended, Piece, parts
from pippin.cli.chat.display import MarkdownDisplay, PlainDisplay, clean, split_blocks
from pippin.core.errors import ServerError

ANSWER = (
    "# Title\n\nSome **bold** words.\n\n1. one\n2. two\n\n```python\nprint(1)\n\nprint(2)\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd."
)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", [""]),
        ("a paragraph", ["a paragraph"]),
        ("one\n\ntwo", ["one\n", "two"]),
        ("- a\n\n- b", ["- a\n\n- b"]),
        ("x\n\n```\na\n\nb", ["x\n", "```\na\n\nb"]),
        ("# t\nrest", ["# t", "rest"]),
    ],
)
def test_a_text_is_cut_where_more_of_it_can_not_change_what_stands_before(
    text: str, blocks: list[str]
) -> None:
    assert split_blocks(text) == blocks


def drawn(pieces: list[str], *, show_reasoning: bool = True, thought: str = "") -> str:
    """What stays on a screen of 40 columns and 12 lines."""
    output = io.StringIO()
    console = Console(file=output, width=40, height=12, force_terminal=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        display = MarkdownDisplay(console, live, show_reasoning=show_reasoning)
        if thought:
            display.show(Piece("reasoning", thought))
        for piece in pieces:
            display.show(Piece("text", piece))
        display.flush()
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_an_answer_is_drawn_the_same_however_it_was_cut(size: int) -> None:
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    shown = drawn(pieces)
    assert shown == drawn([ANSWER])
    for word in ("Title", "Some bold words.", "1 one", "2 two", "print(1)", "print(2)", "End."):
        assert word in shown
    assert "**" not in shown
    assert "```" not in shown


def test_reasoning_stands_before_the_answer_or_is_left_out() -> None:
    assert drawn(["yes"], thought="I think.\nThen").split() == ["I", "think.", "Then", "yes"]
    assert drawn(["yes"], thought="I think.", show_reasoning=False).split() == ["yes"]


def test_a_model_can_not_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\x07\x9bc\td\n") == "a[2Jbc\td\n"


def test_a_pipe_gets_the_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for part in (Piece("reasoning", "hm"), Piece("text", "**a**"), Called("now", "{}"), Ended("stop")):
        display.show(part)
    shown = capsys.readouterr()
    assert shown.out == "**a**"
    assert "calls now" in shown.err


def test_frames_become_parts_and_an_error_in_the_stream_is_raised() -> None:
    frames = [
        ": a comment",
        'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}',
        'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}',
        'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}',
        "data: [DONE]",
    ]
    assert list(parts(iter(frames))) == [
        Piece("reasoning", "hm"),
        Piece("text", "a"),
        Ended("length", 3, 0, 1),
    ]
    with pytest.raises(ServerError, match="it broke"):
        list(parts(iter(['data: {"error": {"message": "it broke"}}'])))
