"""The command line as people type it, in processes of its own."""

import errno
import importlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pippin.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def pippin(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `pippin` with an empty home and none of the caller's variables."""
    return subprocess.run(
        [sys.executable, "-m", "pippin", *words],
        env=environment(home) | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
    )


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "100",
    }


def test_without_a_command_it_says_what_is_here_and_what_to_do_next(home: Path) -> None:
    done = pippin(home)
    assert done.returncode == 0
    assert done.stdout.startswith("No server runs.\nNo models are here.\n")
    for command in ("pippin recommend", "pippin pull", "pippin run", "pippin serve", "pippin --help"):
        assert command in done.stdout
    asked = pippin(home, "--help")
    assert asked.returncode == 0
    assert "usage: pippin COMMAND" in asked.stdout


def test_the_version_is_said(home: Path) -> None:
    assert pippin(home, "--version").stdout.startswith("pippin 0.")
    assert pippin(home, "launch", "--version").stdout.startswith("pippin 0.")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["sevre"], "pippin: there is no command `sevre`. Did you mean `serve`? See `pippin --help`."),
        (
            ["serve", "--prot", "1"],
            "pippin: --prot: no such flag. Did you mean `--port`? See `pippin serve --help`.",
        ),
        (
            ["serve", "--port", "x"],
            "pippin: --port: `x` is not a whole number from 0 to 65535. See `pippin serve --help`.",
        ),
        (["serve", "--port"], "pippin: Argument --port: expected one argument. See `pippin serve --help`."),
        (["config", "set"], "pippin: `pippin config set`: its actions are show."),
        (["service", "start"], "pippin: `pippin service start`: its actions are install, status, uninstall."),
        (["show"], "pippin: The following arguments are required: model. See `pippin show --help`."),
    ],
)
def test_what_is_not_understood_is_one_line_and_status_2(
    words: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capfd.readouterr().err == line + "\n"


def test_help_comes_at_once(home: Path) -> None:
    """The budget is 150 ms beside Python's own start, in processor time: a busy machine takes no more of that."""
    ours = min(_processor_seconds(home, "-m", "pippin", "--help") for _ in range(3))
    bare = min(_processor_seconds(home, "-c", "pass") for _ in range(3))
    assert ours - bare < 0.15


def _processor_seconds(home: Path, *words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], env=environment(home), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_verb_has_help_and_imports_no_model_library(home: Path) -> None:
    verbs = ("serve", "list", "show", "pull", "rm", "import", "ps", "load", "unload")
    program = (
        "import sys; from pippin.cli.main import main\n"
        f"for verb in {verbs}:\n"
        "    try: main(['help', verb])\n"
        "    except SystemExit: pass\n"
        "    heavy = {'mlx', 'mlx_lm', 'transformers', 'torch'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{verb} imported {heavy}')"
    )
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [verb for verb in verbs if f"usage: pippin {verb}" not in done.stdout] == []


@pytest.mark.parametrize("words", [("serve",), ("config", "show"), ("service", "install")])
def test_help_begins_with_what_the_verb_is_for_and_not_with_every_flag(
    home: Path, words: tuple[str, ...]
) -> None:
    usage, blank, does = pippin(home, *words, "--help").stdout.splitlines()[:3]
    assert usage.startswith(f"usage: pippin {' '.join(words)} ")
    assert usage.endswith("[options]")
    assert blank == ""
    assert does.endswith(".")


def test_the_configuration_is_shown_with_its_origins(home: Path) -> None:
    (home / "pippin.yaml").write_text("seed: 3\nmodels: [m]\napi_keys: [secret]\n")
    done = pippin(
        home, "config", "show", "--json", "--config", "pippin.yaml", "--port", "9", PIPPIN_TOP_K="5"
    )
    shown = json.loads(done.stdout)
    assert shown["port"] == {"value": 9, "from": "--port"}
    assert shown["top_k"] == {"value": 5, "from": "PIPPIN_TOP_K"}
    assert shown["seed"] == {"value": 3, "from": "pippin.yaml: seed"}
    assert shown["models[0].path"] == {"value": "m", "from": "pippin.yaml: models[0]"}
    assert shown["host"] == {"value": "127.0.0.1", "from": "default"}
    assert "secret" not in done.stdout


def test_changed_values_alone_are_lines_of_a_file(home: Path) -> None:
    done = pippin(home, "config", "show", "--changed", "--port", "9", "--use-paged-cache")
    assert done.stdout.splitlines() == [
        "port: 9  # --port",
        "# info: --use-paged-cache is accepted and not needed: "
        "the prefix cache is always made of shared blocks.",
    ]


def test_that_nothing_was_changed_is_said(home: Path) -> None:
    assert pippin(home, "config", "show", "--changed").stdout == "# Nothing differs from the defaults.\n"


def test_without_a_server_the_client_verbs_say_so(home: Path) -> None:
    for words in (["ps"], ["load", "m"], ["unload"]):
        done = pippin(home, *words, "--server", "127.0.0.1:9")
        assert done.returncode == 1
        assert (
            done.stderr == "pippin: No server answers at http://127.0.0.1:9 (ConnectionRefusedError). "
            "`pippin logs` shows what happened. Start one: pippin serve\n"
        )
    assert (
        pippin(home, "stop").stderr == "pippin: No server of this user runs here. Start one: pippin serve\n"
    )


def test_word_of_a_server_that_is_gone_is_not_believed_though_its_number_lives_on(home: Path) -> None:
    """Nothing holds the file's lock: `stop` would end whoever has the number now."""
    word = home / ".cache/pippin/run" / f"{os.getpid()}.json"
    word.parent.mkdir(parents=True)
    word.write_text(json.dumps({"pid": os.getpid(), "address": "http://127.0.0.1:9", "started": 0.0}))
    assert (
        pippin(home, "stop").stderr == "pippin: No server of this user runs here. Start one: pippin serve\n"
    )
    assert not word.exists()
    assert (
        pippin(home, "stop", "--port", "9").stderr
        == "pippin: No server of this user runs on port 9. Start one: pippin serve\n"
    )


def test_the_doctor_finds_what_is_wrong_with_the_configuration_and_goes_on(home: Path) -> None:
    (home / "pippin.yaml").write_text("prot: 9\n")
    done = pippin(home, "doctor", "--json", PIPPIN_CONFIG="pippin.yaml")
    findings = json.loads(done.stdout)
    wrong = [finding["text"] for finding in findings if finding["state"] == "problem"]
    assert "pippin.yaml: prot: no such option. Did you mean `port`?" in wrong
    assert any("models here" in finding["text"] for finding in findings)
    assert done.returncode == 1


def test_a_file_that_can_not_be_written_is_one_line(home: Path) -> None:
    (home / "file").touch()
    done = pippin(home, "service", "install", "scripted", HOME=str(home / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"pippin: {home}/file/")
    assert done.stderr.endswith(": Not a directory. See `pippin service --help`.\n")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOENT, "The folder that this was started in, or one for temporary files, is missing"),
        (errno.ENOSPC, "A file can't be written"),
    ],
)
def test_an_error_that_names_no_file_says_what_it_means(
    number: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise OSError(number, "Said by the system")

    monkeypatch.setattr("pippin.cli.welcome.run", fail)
    assert main([]) == 1
    assert capsys.readouterr().err == f"pippin: {said}: Said by the system. See `pippin run --help`.\n"


def test_a_server_imports_no_model_library(home: Path) -> None:
    program = (
        "import sys, pippin.cli.verbs.serve, pippin.api.server, pippin.catalog, pippin.service\n"
        "heavy = {'mlx', 'mlx_lm', 'mlx_vlm', 'transformers', 'torch', 'llguidance', 'numpy', 'PIL', 'openai',\n"
        "         'anthropic', 'huggingface_hub', 'rich', 'mcp', 'httpx'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_help_of_serve_shows_twelve_options_and_all_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["serve", flag])
        shown[flag] = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert len(shown["--help"]) == 13, "twelve, and --help-all"
    assert len(shown["--help-all"]) > 100


@pytest.mark.parametrize("words", [["serve"], ["show", "x"], []])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, package: str | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(words) == 130
