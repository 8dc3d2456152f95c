"""Agents as `pippin agent` starts them, headless, against a scripted model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pippin.cli.verbs.agent import agents
from tests.agents.programs import PYTHON_PACKAGES, RUN_SECONDS, node, npm_command, python_command
from tests.cli.serving import Serving, Terminal

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the agents

SECRET: Final = "marker-4711"
SCRIPT: Final = {
    "context_window": 200_000,
    "rules": [{"when": {"user": "."}, "say": f"The word is {SECRET}."}],
}
HEADLESS: Final = {
    "claude": ("-p", "say the word"),
    "codex": ("exec", "--skip-git-repo-check", "say the word"),
    "opencode": ("run", "say the word"),
    "qwen": ("-p", "say the word"),
    "pi": ("-p", "say the word"),
    "continue": ("-p", "say the word"),
    "copilot": ("-p", "say the word"),
    "cline": ("say the word",),
    "aider": ("--no-git", "--yes-always", "--message", "say the word"),
    "gemini": ("--skip-trust", "-p", "say the word"),
    "kilo": ("run", "say the word"),
    "kimi": ("-p", "say the word"),
    "goose": ("run", "--no-session", "--text", "say the word"),
    "hermes": ("-z", "say the word"),
    "openhands": ("--headless", "--task", "say the word"),
    "openclaw": ("agent", "exec", "say the word"),
    "droid": ("exec", "say the word"),
}
OWN_FILES: Final = {"aider": {".aider.chat.history.md", ".aider.input.history"}}
"""What an agent writes into the project, whoever starts it."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, Serving]]:
    """One server for all of them, and the home in which they find it."""
    terminal = Terminal(tmp_path_factory.mktemp("agents"))
    (terminal.home / "word.script.json").write_text(json.dumps(SCRIPT))
    with terminal.serving("word.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        yield terminal, serving


def commands(name: str) -> Path:
    """The folder that has the agent's command."""
    of = python_command if name in PYTHON_PACKAGES else npm_command
    return of(agents()[name].command).parent


@pytest.mark.parametrize("name", HEADLESS)
def test_an_agent_answers_and_leaves_the_users_files_alone(
    name: str, serving: tuple[Terminal, Serving]
) -> None:
    terminal, server = serving
    work = terminal.home / name
    work.mkdir()
    asked = server.output.read_text().count(" 200 ")
    done = subprocess.run(
        [sys.executable, "-m", "pippin", "agent", name, "--", *HEADLESS[name]],
        env={**terminal.environment, "PATH": f"{commands(name)}:{node()}:{terminal.environment['PATH']}"},
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET in done.stdout
    assert server.output.read_text().count(" 200 ") > asked
    assert {path.name for path in work.iterdir()} <= OWN_FILES.get(name, set())


def test_every_agent_is_run_here_but_those_that_no_registry_brings() -> None:
    """Crush's package fetches its program from a host of its own when it is installed."""
    assert set(agents()) - set(HEADLESS) == {"crush", "claude-desktop", "vscode"}
