"""A worker whose link goes through pipes: what it says last arrives, and it does not outlive who brought it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.running_server import ROOT

SAYS = """
import os
from pippin.worker.main import over_pipes
link, writing = over_pipes()
link.setsockopt(1, 7, 1 << 20)  # SO_SNDBUF
link.sendall(b"x" * 150_000)
print("said")
link.shutdown(1)  # SHUT_WR
writing.join(10)
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
        assert len(process.stdout.read()) == 150_000


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
    while worker.num_threads() < 3:  # those of its pipes
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.send_signal(signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    gone, _ = psutil.wait_procs([worker], timeout=10)
    if not gone:
        worker.kill()
    assert gone
