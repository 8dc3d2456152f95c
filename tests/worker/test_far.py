"""A worker whose link goes through pipes: what it says last arrives, and it does not outlive who brought it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pippin.worker.main import KILLED_FIRST
from tests.running_server import ROOT

SAYS = """
import os
from pippin.core.events import PartDelta
from pippin.worker.loop import WorkerLink
from pippin.worker.main import over_pipes
link = WorkerLink(*over_pipes())
link.send_events([("r", PartDelta(0, 0, "z" * 150_000))])
print("said", flush=True)
link.drain(10)
os._exit(0)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_what_is_said_last_is_read_by_a_slow_reader() -> None:
    command = [sys.executable, "-c", SAYS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stdout is not None
        process.stdin.write(b"spec")  # a worker says nothing before it is told what it is
        process.stdin.flush()
        assert process.stderr.readline() == b"said\n"
        time.sleep(0.2)  # a pipe holds 64 KiB of it
        assert process.stdout.read().count(b"z") == 150_000


PARENT = """
import os, subprocess, sys
ours, theirs = os.pipe()
worker = subprocess.Popen([sys.executable, "-m", "pippin.worker", "-", "/nowhere"], stdin=ours, stdout=subprocess.PIPE)
print(worker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2)")
def test_a_worker_that_is_stopped_ends_with_who_started_it(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 60
    # It offers itself to the kernel once that is told to end it with its parent.
    while int(Path(f"/proc/{worker.pid}/oom_score_adj").read_text()) != KILLED_FIRST:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.send_signal(signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    gone, _ = psutil.wait_procs([worker], timeout=10)
    if not gone:
        worker.kill()
    assert gone
