"""The verbs that need no server: list, show, pull, rm, import."""

import json
import sys
from pathlib import Path

import pytest

from pippin.cli.main import main
from tests.catalog.folders import write_hub_model, write_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "pippin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def imports(home: Path) -> Path:
    return home / "pippin" / "models"


def test_an_empty_machine_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "pippin pull" in capsys.readouterr().out


def test_a_list_without_a_fitting_name_says_so(imports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(imports / "small")
    assert main(["list", "large"]) == 0
    assert "contains `large`" in capsys.readouterr().out
    assert main(["list", "large", "-q"]) == 0
    assert capsys.readouterr().out == ""


def test_models_of_every_place_are_listed(
    home: Path, imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(imports / "imported")
    write_hub_model(home / ".cache/huggingface/hub", "org/fetched")
    write_model(home / "mine" / "local")
    assert main(["ls", "--model-dir", str(home / "mine"), "-q"]) == 0
    assert capsys.readouterr().out.split() == ["local", "imported", "org/fetched"]
    assert main(["list", "fetch", "--json"]) == 0
    [fetched] = json.loads(capsys.readouterr().out)
    assert (fetched["id"], fetched["kind"], fetched["context_window"]) == ("org/fetched", "language", 64)


def test_a_damaged_model_is_listed_with_the_reason(imports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(imports / "broken")
    (folder / "config.json").write_text("{")
    assert main(["list"]) == 0
    assert "broken" in (shown := capsys.readouterr().out)
    assert "not usable: " in shown
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").unlink()
    assert main(["list"]) == 0
    assert "incomplete: " in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["incomplete"]


def test_a_model_is_shown_with_its_defaults_and_who_gave_them(
    imports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {"model_type": "llama", "num_hidden_layers": 30, "num_attention_heads": 9}
    config = {**heads, "max_position_embeddings": 64}
    write_model(
        imports / "small", config, generation_config={"temperature": 0.6, "top_p": 0.9, "num_beams": 4}
    )
    monkeypatch.setenv("PIPPIN_TEMPERATURE", "0.2")
    monkeypatch.setenv("PIPPIN_CPU_KERNELS", "off")  # how a CPU computes is asked in a process of its own
    assert main(["show", "small"]) == 0
    shown = capsys.readouterr().out
    assert "window        64 tokens\n" in shown
    assert "kv_bits       packs all 30 layers\n" in shown
    assert "left out      num_beams of generation_config.json\n" in shown
    assert "temperature 0.2 (server option), top_p 0.9 (checkpoint)" in shown


def test_the_formats_of_calls_and_reasoning_are_told_from_the_template(
    imports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_use = {"name": "tool_use", "template": "<|START_ACTION|>"}
    usual = {"name": "default", "template": "{{ tools }}<tool_call>\\n<function=<think>"}
    write_model(imports / "several", tokenizer_config={"chat_template": [tool_use, usual]})
    write_model(imports / "silent", tokenizer_config={"chat_template": "{{ messages }}"})

    monkeypatch.setenv("PIPPIN_CPU_KERNELS", "off")

    def told(model: str) -> list[str]:
        assert main(["show", model]) == 0
        shown = capsys.readouterr().out.splitlines()
        return [line.split()[-1] for line in shown if line.startswith(("tool calls", "reasoning"))]

    assert told("several") == ["qwen3_coder", "think"]
    assert told("silent") == ["-", "-"]
    monkeypatch.setenv("PIPPIN_TOOL_CALL_PARSER", "hermes")
    monkeypatch.setenv("PIPPIN_REASONING_PARSER", "magistral")
    assert told("silent") == ["json_tools", "mistral"]


def test_it_is_told_how_a_cpu_will_compute_a_model(
    imports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pippin.cli.verbs.show.accelerator", lambda: "cpu")
    module = sys.modules["pippin.catalog.footprint"]  # the room's `footprint` is the function
    monkeypatch.setattr(module, "accelerator", lambda: "cpu")
    monkeypatch.setattr(module, "has_cpu_kernels", lambda: True)
    write_model(imports / "odd", {"model_type": "unheard_of"})
    write_model(imports / "usual", {"model_type": "llama"})
    told = {}
    for name in ("odd", "usual"):
        assert main(["show", name]) == 0
        shown = capsys.readouterr().out.splitlines()
        told[name] = next(line for line in shown if line.startswith("on a CPU")).split(maxsplit=3)[3]
    assert told == {"odd": "float32, or in part by the kernels", "usual": "by the kernels, as stored"}


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pippin: ")
    assert error.count("\n") == 1


def test_a_model_is_deleted_by_name_and_a_folder_of_ones_own_is_not(
    home: Path, imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(imports / "small")
    own = write_model(home / "mine" / "local")
    assert main(["rm", "small", "--yes"]) == 0
    assert capsys.readouterr().out == "small is deleted.\n"
    assert not (imports / "small").exists()
    assert main(["rm", "local", "--yes", "--model-dir", str(home / "mine")]) == 1
    assert own.exists()


def test_what_is_here_is_not_pulled_again(imports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(imports / "small")
    assert main(["pull", "small", "--offline"]) == 0
    assert "small is here" in capsys.readouterr().out
    assert main(["pull", "org/other", "--offline"]) == 1
    assert "offline" in capsys.readouterr().err


def test_a_file_that_is_no_gguf_is_one_line(
    home: Path, imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "x.gguf").write_bytes(b"nothing of the kind")
    assert main(["import", str(home / "x.gguf")]) == 1
    assert capsys.readouterr().err.startswith("pippin: ")
    assert not (imports / "x").exists()


def test_an_import_that_is_there_is_kept(home: Path, imports: Path) -> None:
    write_model(imports / "small")
    assert main(["import", str(home / "absent.gguf"), "--name", "small", "--if-missing"]) == 0


@pytest.mark.model
def test_the_demo_model_is_imported_and_listed(
    demo_gguf: Path, imports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(demo_gguf), "--name", "demo"]) == 0
    assert capsys.readouterr().out.startswith("demo is imported (")
    assert (imports / "demo" / "config.json").is_file()
    assert main(["list", "-q"]) == 0
    assert capsys.readouterr().out == "demo\n"
