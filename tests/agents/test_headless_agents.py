"""The agents themselves, headless, against a scripted model that uses their tools.

npm brings them, once, into the project's cache.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from pippin.api.dialects.anthropic_messages import MessagesDialect
from pippin.api.dialects.base import DecodeContext, Decoded
from pippin.api.dialects.openai_responses import ResponsesDialect
from pippin.core.conversation import Message, Reasoning
from pippin.core.requests import GenerationRequest
from tests.api.scripted_server import scripted_server

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "agents"
PACKAGES: Final = ("@openai/codex@0.169.0", "@anthropic-ai/claude-code@2.1.197")
ASKED: Final = "please read the note"
SECRET: Final = "marker-4711"
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"when": {"tool_result": SECRET}, "say": f"The note says {SECRET}."},
    {
        "when": {"user": ASKED, "tools": ["exec_command"]},
        "think": "I should look.",
        "say": "Reading.",
        "calls": [{"name": "exec_command", "arguments": {"cmd": "cat note.txt"}}],
    },
    {
        "when": {"user": ASKED, "tools": ["Bash"]},
        "think": "I should look.",
        "say": "Reading.",
        "calls": [{"name": "Bash", "arguments": {"command": "cat note.txt", "description": "Read it"}}],
    },
    {"when": {"user": "."}, "say": "Something else."},
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def agents() -> Path:
    """The folder of the agents' commands."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here to fetch the agents")
    commands = CACHE / "node_modules" / ".bin"
    if not (commands / "codex").exists() or not (commands / "claude").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fetch = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), *PACKAGES]
        subprocess.run(fetch, check=True, timeout=500, capture_output=True)
    return commands


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path, *RULES, context_window=200_000) as url:
        yield url


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What was understood of the agents' requests."""
    requests: list[GenerationRequest] = []
    for dialect in (MessagesDialect, ResponsesDialect):

        def listening(
            self: Any, body: bytes, context: DecodeContext, *, decode: Any = dialect.decode
        ) -> Decoded[Any]:
            decoded: Decoded[Any] = decode(self, body, context)
            requests.extend(decoded.requests)
            return decoded

        monkeypatch.setattr(dialect, "decode", listening)
    return requests


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    work = folder / "work"
    work.mkdir()
    (work / "note.txt").write_text(f"{SECRET}\n")
    ended = subprocess.run(
        command,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def conversation(request: GenerationRequest) -> list[Message]:
    """Without what changes nothing in the prompt, or may be left out of later turns."""
    return [
        Message(message.role, tuple(part for part in message.parts if not isinstance(part, Reasoning)))
        for message in request.messages or ()
    ]


def check(seen: list[GenerationRequest], log: pytest.LogCaptureFixture) -> None:
    lines = [record.getMessage() for record in log.records if record.name == "pippin.api.exchange"]
    assert lines
    assert all(" 200 " in line for line in lines), lines
    first, last = seen[0], seen[-1]
    assert last.tools == first.tools
    assert conversation(last)[: len(conversation(first))] == conversation(first)
    assert msgspec.structs.replace(last, messages=None) == msgspec.structs.replace(first, messages=None)


def test_codex(
    agents: Path,
    address: str,
    seen: list[GenerationRequest],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "config.toml").write_text(
        f"""
        model = "scripted"
        model_provider = "pippin"
        model_context_window = 128000
        [model_providers.pippin]
        name = "pippin"
        base_url = "{address}/v1"
        wire_api = "responses"
        [analytics]
        enabled = false
        """
    )
    command: list[str | Path] = [agents / "codex", "exec", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", ASKED]
    with caplog.at_level(logging.INFO, "pippin"):
        said = run(command, tmp_path, CODEX_HOME=str(tmp_path))
    assert SECRET in said
    check(seen, caplog)


def test_claude_code(
    agents: Path,
    address: str,
    seen: list[GenerationRequest],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    command: list[str | Path] = [agents / "claude", "-p", ASKED, "--allowedTools", "Bash"]
    with caplog.at_level(logging.INFO, "pippin"):
        said = run(
            [*command, "--model", "claude-sonnet-4-5"],
            tmp_path,
            ANTHROPIC_BASE_URL=address,
            ANTHROPIC_API_KEY="",
            ANTHROPIC_AUTH_TOKEN="none",
            DISABLE_TELEMETRY="1",
            DISABLE_AUTOUPDATER="1",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )
    assert said.strip() == f"The note says {SECRET}."
    check(seen, caplog)
