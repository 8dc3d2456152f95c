"""How answers are drawn."""

import io
from contextlib import closing

import pytest

from pippin.cli.chat.client import Ended, Piece, parts
from pippin.cli.chat.session import Display
from pippin.cli.terminal import clean, remark, say, table
from pippin.core.errors import ServerError

ANSWER = "# Title\n\n```python\ndef f():\n    return 1\n```\n\n$$\\int_0^1 x^2\\,dx$$ and **bold**.\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_code_and_mathematics_stand_there_as_the_model_wrote_them(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Display(plain=False, show_reasoning=True)) as display:
        for at in range(0, len(ANSWER), size):
            display.show(Piece("text", ANSWER[at : at + size]))
    assert capsys.readouterr().out == ANSWER


@pytest.mark.parametrize(("show", "thought"), [(True, "I think.\nThen"), (False, "thinking ...")])
def test_reasoning_stands_dimmed_before_the_answer_or_is_left_out(
    show: bool, thought: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Display(plain=False, show_reasoning=show)) as display:
        for part in (Piece("reasoning", "I think.\n"), Piece("reasoning", "Then"), Piece("text", "yes")):
            display.show(part)
    assert capsys.readouterr().out == f"\x1b[2m{thought}\x1b[0m\n\nyes"


def test_a_thought_that_is_stopped_leaves_no_dimmed_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), closing(Display(plain=False, show_reasoning=True)) as display:
        display.show(Piece("reasoning", "hm"))
        raise KeyboardInterrupt
    assert capsys.readouterr().out.endswith("\x1b[0m\n\n")


def test_a_model_can_not_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\x07\x9bc\td\n") == "a[2Jbc\td\n"


def test_a_pipe_gets_the_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(plain=True, show_reasoning=True)
    for part in (Piece("reasoning", "hm"), Piece("text", "**a**"), Piece("call", "now"), Ended("stop")):
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


def test_what_tools_models_and_other_machines_send_moves_no_cursor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = "a\x1b]0;owned\x07\x1b[2Jb\rc"
    with closing(Display(plain=False, show_reasoning=True)) as display:
        display.show(Piece("call", evil))
    say(evil)
    say(table(("NAME",), [(evil,)]))
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "a]0;owned[2Jbc" in text
        assert not set("\x1b\x07\r") & set(text)


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (True, "Kept:\n/a/path/that/is/long.json.\nGo on with it: /load\none\n"),
        (False, "Kept: /a/path/that/is/long.json. Go on with it: /load one\n"),
    ],
)
def test_remarks_are_wrapped_between_words_on_a_terminal_alone(
    is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    remark("Kept: /a/path/that/is/long.json. Go on with it: /load one", stream)
    assert stream.getvalue() == shown


def test_lines_of_two_columns_go_on_in_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    remark("/bye    leave; so does ctrl-D\n/new    begin", stream, behind=8)
    assert stream.getvalue() == "/bye    leave; so\n        does ctrl-D\n/new    begin\n"
