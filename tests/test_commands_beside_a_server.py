"""Commands that README and docs print, and that need a running server, work as they are printed."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pippin.cli.main import main
from tests.running_server import running_server
from tests.test_commands import COMMANDS

IN_THIS_ORDER = (
    *("pippin", "pippin ps", "pippin ps --usage", "pippin logs", "pippin list", "pippin config show"),
    *("pippin doctor", "pippin doctor --security", 'pippin run "Say hello."', "pippin run -m NAME PROMPT"),
    *("pippin load MODEL", "pippin unload", "pippin stop"),
)
PUT = {"MODEL": "demo", "NAME": "demo", "PROMPT": "Hello"}
"""What a reader puts for the words in capitals."""


@pytest.fixture(scope="module")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    (home / "demo.script.json").write_text('{"rules": [{"say": "Hello."}]}')
    with running_server(home, str(home / "demo.script.json")):
        yield home


@pytest.mark.parametrize("command", IN_THIS_ORDER)
def test_a_command_works_beside_a_server(
    command: str, served_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(served_home))
    for name in ("PIPPIN_HOME", "XDG_CACHE_HOME", "HF_HOME", "PIPPIN_SERVER", "PIPPIN_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(served_home)
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main([PUT.get(word, word) for word in shlex.split(command)[1:]]) == 0
    assert capsys.readouterr().out


def test_they_are_printed() -> None:
    # `docs/cli.md` prints what may be left out in brackets.
    printed = {command for _, command in COMMANDS} | {command.split(" [")[0] for _, command in COMMANDS}
    assert set(IN_THIS_ORDER) - {"pippin"} <= printed
