"""What a worker imports to load a model: not the libraries whose answers are kept, nor what the model does not need."""

import os
import subprocess
import sys
from pathlib import Path

from tests.engines.tiny_models import tiny_model

LOAD = """
import sys
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.worker.main import import_kind

spec = WorkerSpec(info=ModelInfo(id="m", kind="language", path=PATH), threads=1)
kind = import_kind(spec)
kind.open_engine(spec, kind.open_preparer(spec), lambda *_: None)
print(*sys.modules)
"""
NEVER = {
    "asyncio",
    "transformers",
    "huggingface_hub",
    "mlx_vlm",
    "mlx_lm.convert",
    "torch",
    "PIL",
    "httpx",
    "requests",
}


def loaded(folder: Path, home: Path) -> set[str]:
    """The modules that a process has when it has loaded the model."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD.replace("PATH", repr(str(folder)))],
        env=os.environ | {"PIPPIN_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(done.stdout.split())


def test_a_second_start_imports_neither_transformers_nor_what_needs_it(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    assert "transformers" in loaded(folder, tmp_path / "home")
    second = loaded(folder, tmp_path / "home")
    assert not NEVER & second
    assert "mlx_lm.models.llama" in second
    assert len(second) < 750


BARE = """
import sys

# What only an extra, or a compiler, brings.
for name in ("pippin_kernels", "mlx_vlm", "mlx_audio", "PIL", "av", "pypdfium2", "mcp", "ray", "cryptography"):
    sys.modules[name] = None

import pippin.api.server, pippin.cli.main, pippin.cli.verbs.serve

assert not {"httpcore", "httpx", "httpx2"} & sys.modules.keys(), "only media by address need these"
pippin.api.answers.media.MediaResolver(pippin.config.options.server.ServerOptions()).downloads
assert "anyio._backends._asyncio" in sys.modules, "the event loop would wait for it"

from pippin.core.conversation import Message, Text
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.worker.main import import_kind
from tests.engines.driving import run

spec = WorkerSpec(info=ModelInfo(id="m", kind="language", path=PATH), threads=1)
kind = import_kind(spec)
preparer = kind.open_preparer(spec)
engine = kind.open_engine(spec, preparer, lambda *_: None)
messages = (Message("user", (Text("hello"),)),)
task = Generate(GenerationRequest(model="m", messages=messages, max_tokens=4))
print(run(engine, preparer.prepare("one", task))["one"][-1])
"""


def test_a_text_model_answers_where_no_extra_is_installed_and_no_kernel_compiled(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    done = subprocess.run(
        [sys.executable, "-c", BARE.replace("PATH", repr(str(folder)))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Finished(")


def test_a_question_to_a_running_server_imports_little_of_what_serves() -> None:
    """`pippin run hi` opens the catalog, to see whether `hi` names a model."""
    words = "import sys, pippin.catalog, pippin.cli.main, pippin.cli.verbs.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=60)
    assert not {"asyncio", "psutil", "numpy", "pippin.api", "pippin.runtime"} & set(done.stdout.split())
