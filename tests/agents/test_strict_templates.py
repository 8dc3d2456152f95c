"""Agents go on through three steps with tools under the strictest templates, and read a PDF and a picture.

The agents run against a scripted model that writes calls in the format of a model which refuses much, and whose chat
template renders each request: what the template does not take is refused, and would end the agent.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pippin.api.dialects.base import DecodeContext, Decoded
from pippin.api.dialects.chat.dialect import ChatDialect
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.core.events import Rendered
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import RenderTemplate
from tests.agents.agents import claude_code, codex, opencode
from tests.agents.test_headless_agents import check_answers, seen
from tests.api.scripted_server import scripted_server
from tests.engines.attachments.pdfs import pdf
from tests.engines.attachments.test_reading import png
from tests.output.families import FAMILIES
from tests.reports.test_histories import in_order, prepared

__all__ = ["seen"]

Call = tuple[str, dict[str, str]]


def mistral(*calls: Call) -> str:
    return f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': given} for name, given in calls])}"


def harmony(*calls: Call) -> str:
    """Each call is a message of its own; the first follows what was said before."""
    return "".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{json.dumps(given)}<|call|>"
        for name, given in calls
    )


def llama(*calls: Call) -> str:
    return "<|python_tag|>" + "; ".join(
        json.dumps({"name": name, "parameters": given}) for name, given in calls
    )


def pythonic(*calls: Call) -> str:
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls
    )
    return f"[{', '.join(written)}]"


def deepseek(*calls: Call) -> str:
    written = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(given)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


STRICT: Final[dict[str, Callable[..., str]]] = {
    "mistralai-Mistral-Nemo-Instruct-2407": mistral,
    "openai-gpt-oss-120b": harmony,
    "meta-llama-Llama-3.1-8B-Instruct": llama,
    "gemma3_pythonic": pythonic,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": deepseek,
}
"""Templates that refuse much, and how their models write calls."""
ASKED: Final = "please follow the notes"
MARKS: Final = ("marker-11", "marker-22", "marker-33")
SHELLS: Final = ("exec_command", "Bash", "bash")


def reading(shell: str, *names: str) -> list[Call]:
    def arguments(command: str) -> dict[str, str]:
        if shell == "exec_command":
            return {"cmd": command}
        return {"command": command, "description": "Read it"}

    return [(shell, arguments(f"cat {name}.txt")) for name in names]


def rules(shell: str, write: Callable[..., str]) -> tuple[dict[str, Any], ...]:
    """Three steps: one call, two in parallel, and one more. A message is said before calls where the format can."""
    before = "<|channel|>analysis<|message|>Hm.<|end|>" if write is harmony else ""
    says = "<|channel|>final<|message|>" if write is harmony else ""
    on = "" if write in (llama, pythonic, harmony) else "On. "
    return (
        {"when": {"tool_result": MARKS[2], "tools": [shell]}, "say": f"{says}The last one is {MARKS[2]}."},
        {
            "when": {"tool_result": MARKS[1], "tools": [shell]},
            "say": before + on + write(*reading(shell, "three")),
        },
        {
            "when": {"tool_result": MARKS[0], "tools": [shell]},
            "say": before + write(*reading(shell, "other", "two")),
        },
        {"when": {"user": ASKED, "tools": [shell]}, "say": before + on + write(*reading(shell, "one"))},
    )


READS_TEXT: Final[dict[str, Any]] = {
    "context_window": 200_000,
    "capabilities": {"chat": True, "tools": True, "reasoning": True},
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the agents


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where an agent runs, with notes to read."""
    work = tmp_path / "work"
    work.mkdir()
    for name, text in zip(("one", "two", "three"), MARKS, strict=True):
        (work / f"{name}.txt").write_text(f"{text}\n")
    (work / "other.txt").write_text("something else\n")
    (work / "paper.pdf").write_bytes(pdf("Wombats dig.", "They sleep."))
    (work / "picture.png").write_bytes(png(640, 480))
    return tmp_path


@pytest.fixture
def rendering(monkeypatch: pytest.MonkeyPatch, seen: list[GenerationRequest]) -> Callable[[str], list[str]]:
    """Serves as a model with this template would: what it does not take is refused, what it makes is returned."""

    def by(template: str) -> list[str]:
        prompts: list[str] = []
        for dialect in (ChatDialect, MessagesDialect, ResponsesDialect):

            def rendered(
                self: Any, body: bytes, context: DecodeContext, *, decode: Any = dialect.decode
            ) -> Decoded[Any]:
                decoded: Decoded[Any] = decode(self, body, context)
                for request in decoded.requests:
                    [event] = prepared(template).prepare("1", RenderTemplate(request))  # type: ignore[misc]
                    assert isinstance(event, Rendered)
                    prompts.append(event.text)
                return decoded

            monkeypatch.setattr(dialect, "decode", rendered)
        return prompts

    return by


@pytest.mark.parametrize("agent", [claude_code, codex, opencode], ids=["claude", "codex", "opencode"])
@pytest.mark.parametrize("template", STRICT)
def test_three_steps_with_tools(
    agent: Callable[..., str],
    template: str,
    tmp_path: Path,
    home: Path,
    rendering: Callable[[str], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    [family] = [family for family in FAMILIES if family.file == template]
    formats = {"tool_format": family.tool, "reasoning_format": family.reasoning or "think"}
    steps = [rule for shell in SHELLS for rule in rules(shell, STRICT[template])]
    model = "claude-sonnet-4-5" if agent is claude_code else "scripted"
    prompts = rendering(template)
    with scripted_server(tmp_path, *steps, **READS_TEXT, **formats) as address:
        assert MARKS[2] in agent(address, model, home, ASKED)
    check_answers(caplog)
    for number in range(4):
        assert any(in_order(prompt, ASKED, *MARKS[:number]) for prompt in prompts), number
    assert sum(in_order(prompt, ASKED, MARKS[0]) for prompt in prompts) >= 3


def test_claude_code_reads_a_paper_and_a_picture_and_goes_on(
    home: Path, tmp_path: Path, rendering: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def look(name: str) -> str:
        return mistral(("Read", {"file_path": str(home / "work" / name)}))

    steps = (
        {"when": {"tool_result": MARKS[2], "tools": ["Bash"]}, "say": f"The last one is {MARKS[2]}."},
        {"when": {"turn": 3, "tools": ["Bash"]}, "say": mistral(*reading("Bash", "three"))},
        {"when": {"turn": 2, "tools": ["Bash"]}, "say": look("picture.png")},
        {"when": {"user": ASKED, "tools": ["Bash"]}, "say": look("paper.pdf")},
    )
    prompts = rendering(next(iter(STRICT)))
    with scripted_server(tmp_path, *steps, **READS_TEXT, tool_format="mistral") as address:
        assert MARKS[2] in claude_code(address, "claude-sonnet-4-5", home, ASKED)
    check_answers(caplog)
    assert in_order(prompts[-1], ASKED, "Wombats dig.", "[Picture left out: image/png", MARKS[2])
