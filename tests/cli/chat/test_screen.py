"""What a person sees of `pippin run`: the screen of a terminal, cell by cell."""

import json
import sys
from collections.abc import Iterator

import pytest

from tests.cli.serving import Terminal
from tests.screen import Screen

TIDES = """The sea rises and falls **twice a day**, because the Moon pulls harder on the near side
of the Earth than on the far one.

| tide | when |
|---|---|
| spring | at new and full moon |
| neap | at half moon |

```python
def next_high_water(last: datetime) -> datetime:
    return last + timedelta(hours=12, minutes=25)
```
"""
SCRIPT = {
    "context_window": 65536,
    "rules": [
        {"when": {"user": "tides"}, "think": "Moon, Sun, and an example.", "say": TIDES},
        {"when": {"user": "slowly"}, "say": ["word "] * 2000, "gap": 0.02},
        {"when": {"user": "script"}, "say": "\x1b]0;renamed\x07\x1b[2Jplain <b>text</b>"},
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A home with a server that `pippin run` finds."""
    terminal = Terminal(tmp_path_factory.mktemp("screen"))
    (terminal.home / "demo.script.json").write_text(json.dumps(SCRIPT))
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        yield terminal


@pytest.fixture
def screen(served: Terminal) -> Iterator[Screen]:
    opened = Screen([sys.executable, "-m", "pippin", "run"], served.environment, served.home)
    opened.wait_for(r"demo: ask away(.*\n)+>>>")
    yield opened
    opened.close()


def test_an_answer_stands_on_the_screen_once_and_as_it_was_written(screen: Screen) -> None:
    screen.type("Why are there tides?\r")
    screen.wait_for(r"minutes=25\)(.*\n)+>>>")
    shown = screen.settle()
    assert "Moon, Sun, and an example." in shown
    assert "**twice a day**" in shown
    assert shown.count("\n    return last + timedelta(hours=12, minutes=25)") == 1
    drawn = screen.picture("terminal", "pippin run")
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def test_a_models_words_move_no_cursor(screen: Screen) -> None:
    screen.type("script\r")
    screen.wait_for("plain <b>text</b>")
    assert "ask away" in screen.settle()


def test_keys_pressed_during_an_answer_do_not_stand_in_it(screen: Screen) -> None:
    """Ctrl-C neither."""
    screen.type("slowly\r")
    screen.wait_for(r"(word\s+){25}")
    screen.type("typed ahead")
    screen.wait_for(r"(word\s+){45}")
    assert "typed ahead" not in screen.text()
    screen.type("\x03")
    shown = screen.wait_for(r"stopped(.*\n)+>>>")
    assert "^C" not in shown
    assert "typed ahead" not in shown
    screen.type("/undo\r")
    screen.wait_for("is forgotten")
