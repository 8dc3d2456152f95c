"""What a person sends with a question, and how near batches are to single sequences, of a server that runs."""

import json
import socket
from pathlib import Path

import pytest

from pippin.cli.main import main
from pippin.cli.verbs import doctor
from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server

WITHIN = " of 0.02 (prompts in slots)"


def test_the_agreement_of_batches_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    tiny_model("llama", models / "tiny")
    words = ["tiny", "--model-dir", str(models)]
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))
    with running_server(tmp_path, *words) as address:
        assert main(["doctor", "--report", "--server", address]) == 0
        said = capsys.readouterr().out
        monkeypatch.setenv("PIPPIN_SERVER", address)
        assert main(["show", "tiny", "--model-dir", str(models)]) == 0
        shown = capsys.readouterr().out
        [found] = doctor.check_agreement()
    [home] = {path.parent.parent for path in tmp_path.rglob("verified/*.trials")}
    monkeypatch.setenv("PIPPIN_HOME", str(home))
    assert main(["show", "tiny", "--model-dir", str(models)]) == 0
    assert capsys.readouterr().out == shown, "of the last load, where no server runs"
    report = json.loads(said)
    assert report["mlx"]["facts"]["memory"] > 0
    [model] = report["models"]
    assert model["id"] == "tiny"
    assert WITHIN in model["agreement"]
    assert str(tmp_path) not in said
    assert found.text == f"tiny: batches as alone, within {model['agreement']}"
    assert f"batches       as alone, within {model['agreement']}" in shown


def test_a_report_needs_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path))
    monkeypatch.delenv("PIPPIN_SERVER", raising=False)
    assert main(["doctor", "--report"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["models"] == []
    assert report["mlx"]["facts"]["accelerator"] in ("cpu", "cuda", "metal")


def test_a_server_that_does_not_answer_is_a_finding_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["doctor", "--report", "--server", nobody]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["models"] == []
    [finding] = report["findings"]
    assert finding.startswith(f"No server answers at {nobody}")
    assert report["mlx"]["facts"]["memory"] > 0
