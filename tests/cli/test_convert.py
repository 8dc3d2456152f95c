"""`pippin convert`, as it is typed."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pippin.cli.local import run_errand
from pippin.cli.main import main
from pippin.cli.verbs import convert
from pippin.cli.verbs import convert as conversion
from tests.catalog.folders import write_model
from tests.engines.tiny_models import tiny_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "pippin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_model_is_converted_and_the_next_command_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model("llama", home / "tiny")
    assert main(["convert", str(home / "tiny"), "--bits", "8", "--group-size", "32"]) == 0
    said = capsys.readouterr().out
    assert "tiny-8bit is made of tiny" in said
    assert "pippin verify tiny-8bit --against tiny" in said
    assert "pippin run tiny-8bit" in said
    assert main(["list", "--json"]) == 0
    [made] = json.loads(capsys.readouterr().out)
    assert (made["id"], made["quantization"]) == ("tiny-8bit", "8-bit, group 32")
    assert main(["convert", str(home / "tiny"), "--bits", "8"]) == 1
    assert "is there already. Give another --name" in capsys.readouterr().err
    assert main(["convert", str(home / "tiny"), "--output", str(home / "tiny")]) == 1
    assert "is there already. Give another --output." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--mixed", "3-6", "--bits", "4"], "--mixed 3-6 says the bits"),
        (["--mode", "mxfp4", "--group-size", "64"], "--group-size goes with --mode affine alone"),
        (["--dtype", "bfloat16", "--group-size", "64"], "--group-size goes with --bits"),
        (["--bits", "7"], "argument --bits: invalid choice"),
        (["--name", "a/b"], "neither slashes nor a dot"),
    ],
)
def test_what_does_not_go_together_is_refused(
    home: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(home / "tiny")
    assert main(["convert", str(home / "tiny"), *words]) == 2
    assert reason.lower() in capsys.readouterr().err.lower()


def test_other_kinds_and_other_files_are_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(home / "vectors", {"model_type": "bert"})
    assert main(["convert", str(home / "vectors")]) == 1
    assert "is of the kind `embeddings`" in capsys.readouterr().err
    (home / "play.script.json").write_text("{}")
    assert main(["convert", str(home / "play.script.json")]) == 1
    assert "is a script" in capsys.readouterr().err
    assert main(["convert", "absent"]) == 1
    assert "absent" in capsys.readouterr().err


def test_a_full_disk_is_told_before_anything_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model("llama", home / "tiny")
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: usage)
    assert main(["convert", str(home / "tiny"), "--output", str(home / "made")]) == 1
    assert "are free in" in capsys.readouterr().err
    assert not (home / "made").exists()


def test_a_process_that_dies_is_told_with_its_last_words(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model("llama", home / "tiny")
    monkeypatch.setattr(conversion, "run_errand", lambda _, *rest: run_errand("nothing", *rest))
    assert main(["convert", str(home / "tiny")]) == 1
    assert "ended with status 1: There is no errand" in capsys.readouterr().err


@pytest.mark.model
def test_a_second_rounding_is_told(home: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(demo_model), "--bits", "8", "--name", "demo"]) == 0
    assert "is rounded a second time" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="counts as Linux does")
def test_a_conversion_takes_less_memory_than_the_model(home: Path) -> None:
    source = tiny_model("llama", home / "large", hidden_size=1024, head_dim=128, num_attention_heads=8,
                        num_key_value_heads=8, intermediate_size=6144, num_hidden_layers=12)  # fmt: skip
    command = [sys.executable, "-m", "pippin", "convert", str(source)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    subprocess.run(command, check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "2"})
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    size = (source / "model.safetensors").stat().st_size
    assert before * 1024 < size / 2, "another child of this process was as large"
    assert peak < size / 2
