"""Threats 32, 33, 35: a model folder is data. Its Python is never run, its pickles are never read."""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pippin.catalog import read_info
from pippin.catalog.hub_child import WANTED
from pippin.core.errors import ServerError

SOURCE = Path(__file__).parents[2] / "src" / "pippin"
EVIL = "open(MARK, 'w').close()\nclass Evil: pass\nclass Model: pass\n"
LOADERS = {
    "tokenizer": "import transformers; transformers.AutoTokenizer.from_pretrained(F, trust_remote_code=True)",
    "config": "import transformers; transformers.AutoConfig.from_pretrained(F, trust_remote_code=True)",
    "processor": "import transformers; transformers.AutoProcessor.from_pretrained(F, trust_remote_code=True)",
    "mlx_lm": "import pathlib, mlx_lm.utils; mlx_lm.utils.load_model(pathlib.Path(F), trust_remote_code=True)",
    "import": "import sys; sys.path.insert(0, F); import evil",
}
PROGRAM = """
import sys
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.worker.forbidden import forbid_foreign_code
F = sys.argv[1]
options = {"trust_remote_code": sys.argv[2] == "trusted"}
forbid_foreign_code(WorkerSpec(info=ModelInfo(id="evil", kind="language", path=F), options=options))
"""
TRY = """
import os
try:
    {load}
except Exception:
    pass
print("{name}", os.path.exists(sys.argv[3]))
if os.path.exists(sys.argv[3]):
    os.remove(sys.argv[3])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that asks every loader to run `evil.py`, which leaves a mark."""
    found = tmp_path / "model"
    found.mkdir()
    (found / "evil.py").write_text(EVIL.replace("MARK", repr(str(tmp_path / "mark"))))
    autos = dict.fromkeys(("AutoConfig", "AutoProcessor", "AutoModel"), "evil.Evil")
    config = {"model_type": "evil", "model_file": "evil.py", "auto_map": autos, "architectures": ["Evil"]}
    (found / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (found / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    processor = {"processor_class": "Evil", "auto_map": {"AutoProcessor": "evil.Evil"}}
    (found / "preprocessor_config.json").write_text(json.dumps(processor))
    return found


def ran_by(folder: Path, loaders: Sequence[str], trust: str) -> list[str]:
    """Which of these loaders ran the code, one after the other in one process."""
    program = PROGRAM + "".join(TRY.format(name=name, load=LOADERS[name]) for name in loaders)
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), trust, str(folder.parent / "mark")],
        env={"PYTHONPATH": str(SOURCE.parent), "HOME": str(folder.parent), "HF_HUB_OFFLINE": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    tried = dict(line.split() for line in done.stdout.splitlines() if line.startswith(tuple(LOADERS)))
    assert list(tried) == list(loaders), done.stdout
    return [name for name, ran in tried.items() if ran == "True"]


def test_no_loader_runs_code_of_the_model_even_where_it_trusts_it_itself(folder: Path) -> None:
    assert ran_by(folder, tuple(LOADERS), "not trusted") == []


def test_the_operators_trust_lets_it_run(folder: Path) -> None:
    assert ran_by(folder, ("tokenizer", "import"), "trusted") == ["tokenizer", "import"]


def calls(path: Path, names: set[str]) -> list[ast.Call]:
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        call
        for call in found
        if (isinstance(call.func, ast.Attribute) and call.func.attr in names)
        or (isinstance(call.func, ast.Name) and call.func.id in names)
    ]


def test_every_loader_of_transformers_is_told_whom_to_trust() -> None:
    silent = [
        f"{path.name}:{call.lineno}"
        for path in (SOURCE / "engines").rglob("*.py")
        for call in calls(path, {"from_pretrained"})
        if "trust_remote_code" not in {keyword.arg for keyword in call.keywords}
    ]
    assert silent == []


def test_trust_is_off_unless_the_operator_says_so() -> None:
    from pippin.config.options.model import ModelOptions

    assert ModelOptions().trust_remote_code is False


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.npz", "model.pkl"])
def test_weights_that_are_no_safetensors_are_no_weights(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(ServerError, match="safetensors"):
        read_info(tmp_path)


@pytest.mark.parametrize("name", ["a.bin", "a.pt", "a.pth", "a.ckpt", "a.pkl", "a.py", "a.zip", "a.so"])
def test_what_could_hold_code_is_not_even_downloaded(name: str) -> None:
    assert not any(Path(name).match(pattern) for pattern in WANTED)
