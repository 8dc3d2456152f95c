"""Real processes on a core that too many want: who is to blame for an answer that is late."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.health.probes import LATE, Line, Look, Probe, Thread, probe
from tests.chaos.ledger import Ledger
from tests.chaos.storm import Report, judge_health

SERVER = Path(__file__).with_name("blamed_server.py")
RIVALS = 3
HELD = 0.7  # seconds, for which the server says nothing by its own doing

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells how long threads wait for a core"
)


@contextlib.contextmanager
def crowded(reason: str, niceness: int) -> Iterator[tuple[int, int]]:
    """The port and the process of a server that shares one core with rivals who never rest."""
    core = min(os.sched_getaffinity(0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["taskset", "-c", str(core)]
    server = subprocess.Popen([*words, sys.executable, SERVER, str(port), reason], stdout=subprocess.PIPE)
    rivals = []
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        for task in os.listdir(f"/proc/{server.pid}/task"):  # niceness belongs to threads
            os.setpriority(os.PRIO_PROCESS, int(task), niceness)
        spin = [*words, sys.executable, "-c", "while True: pass"]
        rivals = [subprocess.Popen(spin) for _ in range(RIVALS)]
        yield port, server.pid
    finally:
        for process in (server, *rivals):
            process.kill()
            process.communicate()


def blamed(found: Probe) -> bool:
    report = Report(Ledger(), health=[found])
    judge_health(report)
    return bool(report.ledger.broken)


@pytest.mark.parametrize("reason", ["busy", pytest.param("asleep", marks=pytest.mark.long)])
def test_a_server_that_holds_its_own_event_loop_is_to_blame_on_a_busy_machine_too(reason: str) -> None:
    with crowded(reason, niceness=0) as (port, process):
        found = probe(port, str(process))
    assert found.took > 200
    assert blamed(found), found


def test_a_server_that_is_stopped_is_to_blame_on_a_busy_machine_too() -> None:
    with crowded("quick", niceness=0) as (port, process):
        os.kill(process, signal.SIGSTOP)
        threading.Timer(HELD, os.kill, (process, signal.SIGCONT)).start()
        found = probe(port, str(process))
        assert blamed(found), found
        os.kill(process, signal.SIGSTOP)
        silent = probe(port, str(process), patience=0.3)
    assert not silent.answered
    assert blamed(silent), silent


@pytest.mark.parametrize("reason", ["thread", pytest.param("quick", marks=pytest.mark.long)])
def test_a_server_that_others_keep_from_the_core_is_not_to_blame(reason: str) -> None:
    with crowded(reason, niceness=5) as (port, process):
        found = max((probe(port, str(process)) for _ in range(3)), key=lambda each: each.took)
    assert found.took > LATE
    assert not blamed(found), found


def test_what_other_threads_wait_excuses_only_whoever_waits_for_their_lock() -> None:
    def at(moment: float, *, lock: bool, ran: float = 0.0, unseen: float = 0.0) -> Look:
        return Look(moment, Thread(ran=ran), lock, {"2": moment, "3": moment}, unseen)

    def waited(*looks: Look) -> float:
        line = Line(looks[0])
        for each in looks[1:]:
            line.add(each, found=False)
        return line.waited

    assert waited(at(0, lock=False), at(10, lock=False)) == 0
    assert waited(at(0, lock=True), at(10, lock=True)) == 10  # two waited at once
    assert waited(at(0, lock=True), at(10, lock=False), at(20, lock=False)) == 10
    assert waited(at(0, lock=True), at(10, lock=True, ran=4)) == 6
    assert waited(at(0, lock=False), at(90, lock=False, unseen=80)) == 90  # nobody saw for what it slept
