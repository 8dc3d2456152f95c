"""How many files a process may have open stays its own affair, whatever libraries ask for."""

import subprocess
import sys
from pathlib import Path

from tests.engines.tiny_models import tiny_model

LIMITS = 700, 900
FEW = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {LIMITS});"
TOLD = "print(resource.getrlimit(resource.RLIMIT_NOFILE))"


def ran(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", FEW + program + "\n" + TOLD],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.strip()


def test_mlx_lm_is_imported_where_few_files_are_allowed() -> None:
    guarded = "from pippin.worker.forbidden import keep_file_limit\nkeep_file_limit(); import mlx_lm.utils\n"
    assert ran(guarded) == str(LIMITS)


WORKER = """
import sys, threading
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.worker import main

class Link:
    read_orders = lambda self, handle, lost: threading.Event().wait()
    send = lambda self, report: None

main.StepLoop.admission = lambda self: None  # nothing is to be loaded behind the tokenizer
spec = WorkerSpec(info=ModelInfo(id="m", kind="language", path=PATH))
assert main.run(spec, Link()) == 0
assert "mlx_lm.utils" in sys.modules
"""


def test_a_worker_loads_where_few_files_are_allowed(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    assert ran(WORKER.replace("PATH", repr(str(folder)))) == str(LIMITS)


def test_other_limits_can_be_set_all_the_same() -> None:
    program = (
        "from pippin.worker.forbidden import keep_file_limit\n"
        "keep_file_limit()\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
    )
    assert ran(program) == str(LIMITS)
