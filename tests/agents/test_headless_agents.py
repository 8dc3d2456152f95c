"""The agents themselves, headless, against a scripted model that uses their tools."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from pippin.api.dialects.base import DecodeContext, Decoded
from pippin.api.dialects.chat.dialect import ChatDialect
from pippin.api.dialects.gemini.dialect import GeminiDialect
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.core.conversation import Message, Reasoning
from pippin.core.requests import GenerationRequest
from tests.agents.agents import (
    aider,
    claude_code,
    cline,
    codex,
    continue_cli,
    copilot,
    gemini_cli,
    opencode,
    pi,
    qwen_code,
)
from tests.api.scripted_server import scripted_server

ASKED: Final = "please read the note"
SECRET: Final = "marker-4711"
THOUGHT: Final = "I should look."
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"when": {"tool_result": SECRET}, "say": f"The note says {SECRET}."},
    *(
        {
            "when": {"user": ASKED, "tools": [tool]},
            "think": THOUGHT,
            "say": "Reading.",
            "calls": [{"name": tool, "arguments": arguments}],
        }
        for tool, arguments in (
            ("exec_command", {"cmd": "cat note.txt"}),
            ("Bash", {"command": "cat note.txt", "description": "Read it"}),
            ("bash", {"command": "cat note.txt", "description": "Read it"}),
            (
                "run_shell_command",
                {"command": "cat note.txt", "description": "Read it", "is_background": False},
            ),
            ("run_commands", {"commands": ["cat note.txt"]}),
        )
    ),
    {"when": {"user": "please shout"}, "say": "I shout.\n\nhello.py\n```\nprint('HELLO')\n```\n"},
    {"when": {"user": "."}, "say": "Something else."},
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the agents


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path, *RULES, context_window=200_000) as url:
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where an agent runs; it has a note to read."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "note.txt").write_text(f"{SECRET}\n")
    return tmp_path


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[GenerationRequest]:
    """What was understood of the agents' requests."""
    caplog.set_level(logging.INFO, "pippin")
    requests: list[GenerationRequest] = []
    for dialect in (ChatDialect, GeminiDialect, MessagesDialect, ResponsesDialect):

        def listening(
            self: Any, body: bytes, context: DecodeContext, *, decode: Any = dialect.decode
        ) -> Decoded[Any]:
            decoded: Decoded[Any] = decode(self, body, context)
            requests.extend(decoded.requests)
            return decoded

        monkeypatch.setattr(dialect, "decode", listening)
    return requests


def conversation(request: GenerationRequest) -> list[Message]:
    """Without what changes nothing in the prompt: signatures of thoughts, hints for the cache."""
    return [
        Message(
            message.role,
            tuple(Reasoning(part.text) if isinstance(part, Reasoning) else part for part in message.parts),
        )
        for message in request.messages or ()
    ]


def check_answers(log: pytest.LogCaptureFixture) -> None:
    lines = [record.getMessage() for record in log.records if record.name == "pippin.api.access.exchange"]
    assert lines
    assert all(" 200 " in line for line in lines), lines


def check_second_turn(first: GenerationRequest, second: GenerationRequest) -> None:
    """It goes on from the first one word by word, thoughts included, so that its prefix is found again."""
    assert second.tools == first.tools
    earlier, later = conversation(first), conversation(second)
    assert later[: len(earlier)] == earlier
    said = [part for message in later[len(earlier) :] for part in message.parts]
    assert Reasoning(THOUGHT) in said
    assert msgspec.structs.replace(second, messages=None) == msgspec.structs.replace(first, messages=None)


def test_codex(
    address: str, home: Path, seen: list[GenerationRequest], caplog: pytest.LogCaptureFixture
) -> None:
    assert SECRET in codex(address, "scripted", home, ASKED)
    check_answers(caplog)
    check_second_turn(seen[0], seen[-1])


def test_claude_code(
    address: str, home: Path, seen: list[GenerationRequest], caplog: pytest.LogCaptureFixture
) -> None:
    said = claude_code(address, "claude-sonnet-4-5", home, ASKED)
    assert said.strip() == f"The note says {SECRET}."
    check_answers(caplog)
    check_second_turn(seen[0], seen[-1])


def test_gemini_cli(
    address: str, home: Path, seen: list[GenerationRequest], caplog: pytest.LogCaptureFixture
) -> None:
    assert SECRET in gemini_cli(address, "scripted", home, ASKED)
    check_answers(caplog)
    check_second_turn(seen[0], seen[-1])


def test_opencode(
    address: str, home: Path, seen: list[GenerationRequest], caplog: pytest.LogCaptureFixture
) -> None:
    assert SECRET in opencode(address, "scripted", home, ASKED)
    check_answers(caplog)
    turns = [request for request in seen if request.tools]  # the others ask for the session's title
    check_second_turn(turns[0], turns[-1])


def test_aider(
    address: str, home: Path, seen: list[GenerationRequest], caplog: pytest.LogCaptureFixture
) -> None:
    file = home / "work" / "hello.py"
    file.write_text("print('hello')\n")
    said = aider(address, "scripted", home, "please shout", "thank you", files=("hello.py",))
    assert "Applied edit to hello.py" in said
    assert file.read_text() == "print('HELLO')\n"
    check_answers(caplog)
    assert len(seen) == 2


@pytest.mark.parametrize("agent", [qwen_code, continue_cli, cline, pi])
def test_other_agents_over_chat_completions(
    agent: Callable[..., str],
    address: str,
    home: Path,
    seen: list[GenerationRequest],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert SECRET in agent(address, "scripted", home, ASKED)
    check_answers(caplog)
    check_conversation_grows(seen)


@pytest.mark.parametrize("wire", ["completions", "responses", "websockets"])
def test_copilot_with_its_own_provider(
    wire: str,
    address: str,
    home: Path,
    seen: list[GenerationRequest],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert SECRET in copilot(address, "scripted", home, ASKED, wire=wire)
    check_answers(caplog)
    check_conversation_grows(seen)


def check_conversation_grows(seen: list[GenerationRequest]) -> None:
    """The second turn has the same tools and holds the first one word by word, so that its prefix is found again."""
    first, second = seen[0], seen[-1]
    earlier, later = conversation(first), conversation(second)
    assert second.tools == first.tools
    assert len(later) > len(earlier)
    assert later[: len(earlier)] == earlier
