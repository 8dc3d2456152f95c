"""A coding agent as a person sees it after `pippin agent`, on a scripted model."""

import json
import sys
from pathlib import Path

import pytest

from tests.agents.programs import npm_command
from tests.cli.serving import Terminal, terminal
from tests.screen import Screen

__all__ = ["terminal"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the agent

FOUND = (
    "`next_high_water` adds 12 hours, but the tide comes back after **12 hours and 25 minutes**. "
    "Use `timedelta(hours=12, minutes=25)`."
)


def acquainted(home: Path, work: Path) -> None:
    """What Claude Code writes once a person has chosen colours and said that the folder is their own."""
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    settings = {"hasCompletedOnboarding": True, "theme": "dark", "projects": {str(work): known}}
    (home / ".claude.json").write_text(json.dumps(settings))


def test_claude_code_reads_a_file_and_answers(terminal: Terminal) -> None:
    work = terminal.home / "tides"
    work.mkdir()
    (work / "tides.py").write_text("def next_high_water(last):\n    return last + 12\n")
    acquainted(terminal.home, work)
    script = {
        "context_window": 65536,
        "rules": [
            {"when": {"tool_result": "def next"}, "say": FOUND},
            {
                "when": {"user": "wrong"},
                "calls": [{"name": "Read", "arguments": {"file_path": str(work / "tides.py")}}],
            },
        ],
    }
    (terminal.home / "demo.script.json").write_text(json.dumps(script))
    terminal.environment["PATH"] = f"{npm_command('claude').parent}:{terminal.environment['PATH']}"
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        screen = Screen([sys.executable, "-m", "pippin", "agent", "claude"], terminal.environment, work)
        try:
            screen.wait_for(r"for shortcuts|shift\+tab to cycle", 120)
            screen.settle(2)
            screen.type("What is wrong with tides.py?")
            screen.wait_for("tides.py[?]")
            screen.type("\r")
            screen.wait_for("25 minutes.*Use", 120)
            assert "Read 1 file" in screen.settle(3)
            screen.picture("agent", "pippin agent claude")
        finally:
            screen.close()
