"""The service files of launchd and systemd."""

import os
import plistlib
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from pippin.cli.verbs import service as module
from pippin.cli.verbs.service import launchd, service, systemd
from pippin.config.errors import ConfigError

COMMAND = ["/usr/bin/python3", "-m", "pippin", "serve", "a model", "--alias", "x=100%$HOME"]


def test_the_launchd_agent_starts_the_server_at_login_and_again_when_it_fails() -> None:
    agent = plistlib.loads(launchd(Path("/Users/me")).text(COMMAND, {"HF_HOME": "/x"}).encode())
    assert agent["ProgramArguments"] == COMMAND
    assert agent["EnvironmentVariables"] == {"HF_HOME": "/x"}
    assert agent["RunAtLoad"] is True
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ThrottleInterval"] == 1
    assert agent["StandardErrorPath"] == "/Users/me/Library/Logs/pippin.log"
    assert launchd(Path("/Users/me")).path.name == "dev.pippin.server.plist"


def test_the_systemd_unit_quotes_what_systemd_would_expand() -> None:
    unit = systemd(Path("/home/me")).text(COMMAND, {"HF_HOME": "/my models", "X": "50%$x"})
    assert 'ExecStart=/usr/bin/python3 -m pippin serve "a model" --alias x=100%%$$HOME\n' in unit
    assert 'Environment="HF_HOME=/my models"\nEnvironment=X=50%%$x\n' in unit
    assert "Restart=on-failure\n" in unit
    assert "RestartPreventExitStatus=2\n" in unit
    assert systemd(Path("/home/me")).path == Path("/home/me/.config/systemd/user/pippin.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "a folder with spaces" / "python 3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "pippin.service"
    unit.write_text(systemd(tmp_path).text([str(program), *COMMAND[1:]], {"HF_HOME": "/my models/100%$x"}))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (found.returncode, "pippin.service" in found.stderr) == (0, False), found.stderr


def test_a_dry_run_prints_the_file_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pippin.yaml").write_text("")
    monkeypatch.setenv("AGX_RELAX_CDM_CTXSTORE_TIMEOUT", "1")
    assert service.run(["install", "--dry-run", "--port", "8123", "org/model", "--config=pippin.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "Environment=AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1" in shown
    assert str(tmp_path / ".config/systemd/user/pippin.service") in shown
    assert f"pippin serve --port=8123 --config={tmp_path}/pippin.yaml org/model" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["pippin.yaml"]


def test_arguments_are_checked_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="--prot: no such flag"):
        service.run(["install", "--prot", "8123"])
    with pytest.raises(ConfigError, match="The model 'nothere' does not exist here"):
        service.run(["install", "nothere"])
    assert list(tmp_path.iterdir()) == []


def test_install_status_and_uninstall_call_the_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for systemctl writes down how it was called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    calls = tmp_path / "calls"
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tools / "systemctl").chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr("sys.platform", "linux")
    unit = home / ".config/systemd/user/pippin.service"
    assert service.run(["status"]) == 1
    assert service.run(["install", "org/model", "--api-key", "secret"]) == 0
    assert unit.stat().st_mode & 0o077 == 0
    assert service.run(["status"]) == 0
    assert service.run(["install", "org/another"]) == 0
    assert "serve org/another" in unit.read_text()
    assert service.run(["uninstall"]) == 0
    assert not unit.exists()
    assert service.run(["uninstall"]) == 0
    assert calls.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now pippin.service",
        "--user --no-pager status pippin.service",
        "--user disable --now pippin.service",
        "--user daemon-reload",
        "--user enable --now pippin.service",
        "--user disable --now pippin.service",
    ]
    assert "not installed" in capsys.readouterr().out


def test_launchd_is_called_in_the_users_own_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools, calls = tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    (tools / "launchctl").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tools / "launchctl").chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr("sys.platform", "darwin")
    agent = launchd(tmp_path).path
    for words in (["install", "org/model"], ["status"], ["install", "org/another"], ["uninstall"]):
        assert service.run(words) == 0
        assert agent.exists() is (words != ["uninstall"])
    domain = f"gui/{os.getuid()}"
    start, stop = f"bootstrap {domain} {agent}", f"bootout {domain}/dev.pippin.server"
    found = calls.read_text().splitlines()
    assert found == [start, f"print {domain}/dev.pippin.server", stop, start, stop]
    assert "The service is removed." in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--api-key", "s3cret"], ["--api-key=s3cret"], ["--api-key", "s3cret,other"]]
)
def test_a_key_is_in_no_command_line_of_the_service(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "manager", lambda: systemd(Path.home()))
    assert service.run(["install", "--dry-run", "scripted", *words, "--port", "8123"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (command,) = (line for line in lines if line.startswith("ExecStart="))
    assert "s3cret" not in command
    assert "api-key" not in command
    assert command.endswith(" serve --port=8123 scripted")
    assert f"Environment=PIPPIN_API_KEYS={words[-1].removeprefix('--api-key=')}" in lines


def test_a_worker_that_the_kernel_ended_does_not_stop_the_service() -> None:
    assert "OOMPolicy=continue\n" in systemd(Path("/home/me")).text(["pippin"], {})


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize(
    "name", ["x\rExecStartPre=/bin/sh", "x\nExecStartPre=/bin/sh", "x\x1b[2J", "x\x7f", "x\udcff"]
)
def test_no_name_becomes_a_setting_of_the_service(
    name: str, platform: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(ConfigError, match="control characters"):
        service.run(["install", "--dry-run", "org/model", "--served-model-name", name])
    assert capsys.readouterr().out == ""


def test_no_folder_of_models_becomes_a_setting_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/models\rExecStartPre=/bin/sh")
    with pytest.raises(ConfigError, match="control characters"):
        service.run(["install", "--dry-run", "org/model"])


@pytest.mark.parametrize(
    "name", ["a;b", "; rm -rf ~", "$(id) `id` ${HOME} %h", '" -x "', "a\\", "-x", "@y", "\u2028z"]
)
def test_a_name_stays_one_word_of_the_services_command_line(name: str) -> None:
    """As systemd reads it: quotes and backslashes as in C, `%%` and `$$` for one of each."""
    unit = systemd(Path("/home/me")).text(["/usr/bin/python3", "--served-model-name", name], {})
    (line,) = (line for line in unit.split("\n") if line.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))
    assert [word.replace("%%", "%").replace("$$", "$") for word in words] == [
        "/usr/bin/python3",
        "--served-model-name",
        name,
    ]
    agent = plistlib.loads(launchd(Path("/Users/me")).text(["/x", name], {}).encode())
    assert agent["ProgramArguments"] == ["/x", name]
