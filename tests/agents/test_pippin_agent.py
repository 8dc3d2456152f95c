"""Agents as `pippin agent` starts them, headless, against a scripted model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.agents.agents import AIDER
from tests.agents.programs import FETCH_SECONDS, RUN_SECONDS, npm_command, python_environment
from tests.cli.serving import Serving, Terminal, terminal

__all__ = ["terminal"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the agents

SECRET: Final = "marker-4711"
SCRIPT: Final = {
    "context_window": 200_000,
    "rules": [{"when": {"user": "."}, "say": f"The word is {SECRET}."}],
}
MORE_PACKAGES: Final = {
    "qwen": "@qwen-code/qwen-code@0.24.4",
    "pi": "@mariozechner/pi-coding-agent@0.73.1",
    "cn": "@continuedev/cli@1.5.47",
    "copilot": "@github/copilot@1.0.102",
    "cline": "cline@3.0.65",
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
}
OWN_FILES: Final = {"aider": {".aider.chat.history.md", ".aider.input.history"}}
"""What an agent writes into the project, whoever starts it."""


def more_commands(folder: Path) -> Path:
    """The folder of commands of the agents that only these tests run; their own scripts are not run."""
    commands = folder / "node_modules" / ".bin"
    if not all((commands / name).exists() for name in MORE_PACKAGES):
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
        subprocess.run(
            [*install, *MORE_PACKAGES.values()], check=True, timeout=FETCH_SECONDS, capture_output=True
        )
    return commands


@pytest.fixture
def serving(terminal: Terminal) -> Iterator[Serving]:
    first = npm_command("claude").parent
    folder = first.parents[1] / "more"
    folder.mkdir(exist_ok=True)
    python = python_environment("aider", AIDER)
    terminal.environment["PATH"] += f":{first}:{more_commands(folder)}:{python}"
    (terminal.home / "word.script.json").write_text(json.dumps(SCRIPT))
    with terminal.serving("word.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        yield serving


@pytest.mark.parametrize("name", HEADLESS)
def test_an_agent_answers_and_leaves_the_users_files_alone(
    name: str, terminal: Terminal, serving: Serving
) -> None:
    work = terminal.home / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pippin", "agent", name, "--", *HEADLESS[name]],
        env=terminal.environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET in done.stdout
    assert " 200 " in serving.output.read_text()
    assert {path.name for path in work.iterdir()} <= OWN_FILES.get(name, set())
