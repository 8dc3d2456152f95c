"""Agents go on through three steps with tools under the strictest templates, and read a PDF and a picture.

The agents run against a scripted model. What they have sent is rendered by the templates of models that refuse much.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pippin.core.events import Rendered
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import RenderTemplate
from tests.agents.agents import claude_code, codex, opencode
from tests.agents.test_headless_agents import check_answers, seen
from tests.api.scripted_server import scripted_server
from tests.engines.attachments.pdfs import pdf
from tests.engines.attachments.test_reading import png
from tests.reports.test_histories import in_order, prepared

__all__ = ["seen"]

STRICT: Final = (
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
    "meta-llama-Llama-3.1-8B-Instruct",
    "gemma3_pythonic",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
)
ASKED: Final = "please follow the notes"
MARKS: Final = ("marker-11", "marker-22", "marker-33")
SHELLS: Final = ("exec_command", "Bash", "bash")


def reading(shell: str, *names: str) -> list[dict[str, Any]]:
    def arguments(command: str) -> dict[str, str]:
        if shell == "exec_command":
            return {"cmd": command}
        return {"command": command, "description": "Read it"}

    return [{"name": shell, "arguments": arguments(f"cat {name}.txt")} for name in names]


def rules(shell: str) -> tuple[dict[str, Any], ...]:
    """Three steps: one call, two in parallel, and one more."""
    return (
        {"when": {"tool_result": MARKS[2], "tools": [shell]}, "say": f"The last one is {MARKS[2]}."},
        {"when": {"tool_result": MARKS[1], "tools": [shell]}, "say": "On.", "calls": reading(shell, "three")},
        {
            "when": {"tool_result": MARKS[0], "tools": [shell]},
            "think": "Two more.",
            "calls": reading(shell, "other", "two"),
        },
        {
            "when": {"user": ASKED, "tools": [shell]},
            "think": "I should look.",
            "say": "Reading.",
            "calls": reading(shell, "one"),
        },
    )


RULES: Final = tuple(rule for shell in SHELLS for rule in rules(shell))
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
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path, *RULES, **READS_TEXT) as url:
        yield url


@pytest.mark.parametrize("agent", [claude_code, codex, opencode], ids=["claude", "codex", "opencode"])
def test_three_steps_with_tools(
    agent: Callable[..., str],
    address: str,
    home: Path,
    seen: list[GenerationRequest],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = "claude-sonnet-4-5" if agent is claude_code else "scripted"
    assert MARKS[2] in agent(address, model, home, ASKED)
    check_answers(caplog)
    steps = [request for request in seen if request.tools and f"{ASKED}" in str(request.messages)]
    assert len(steps) == 4
    for template in STRICT:
        for number, request in enumerate(steps):
            [rendered] = prepared(template).prepare("1", RenderTemplate(request))  # type: ignore[misc]
            assert isinstance(rendered, Rendered)
            assert in_order(rendered.text, ASKED, *MARKS[:number]), (template, number)


def test_claude_code_reads_a_paper_and_a_picture_and_goes_on(
    home: Path, tmp_path: Path, seen: list[GenerationRequest], caplog: pytest.LogCaptureFixture
) -> None:
    def look(name: str) -> list[dict[str, Any]]:
        return [{"name": "Read", "arguments": {"file_path": str(home / "work" / name)}}]

    steps = (
        {"when": {"tool_result": MARKS[2], "tools": ["Bash"]}, "say": f"The last one is {MARKS[2]}."},
        {"when": {"turn": 3, "tools": ["Bash"]}, "calls": reading("Bash", "three")},
        {"when": {"turn": 2, "tools": ["Bash"]}, "calls": look("picture.png")},
        {"when": {"user": ASKED, "tools": ["Bash"]}, "calls": look("paper.pdf")},
    )
    with scripted_server(tmp_path, *steps, **READS_TEXT) as address:
        assert MARKS[2] in claude_code(address, "claude-sonnet-4-5", home, ASKED)
    check_answers(caplog)
    [rendered] = prepared(STRICT[0]).prepare("1", RenderTemplate(seen[-1]))  # type: ignore[misc]
    assert isinstance(rendered, Rendered)
    assert in_order(rendered.text, ASKED, "Wombats dig.", "[Picture left out: image/png, 640x480", MARKS[2])
