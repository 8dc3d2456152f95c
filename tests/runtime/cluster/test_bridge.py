"""How a worker of the cluster ends for the server, and what is asked of Ray; without Ray."""

import os
import signal
import subprocess
import sys

import pytest

from pippin.config.cluster import MACHINE
from pippin.runtime.cluster.needs import PART, Need
from tests.running_server import ROOT


@pytest.mark.parametrize("status", [0, 71, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM])
def test_a_bridge_ends_as_its_worker_did(status: int) -> None:
    program = f"from pippin.runtime.cluster.bridge import end_as; end_as({int(status)})"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False
    )
    assert ended.returncode == status


def test_a_worker_has_a_machine_for_itself_unless_it_is_bound() -> None:
    joined = {"CPU": 8.0, "memory": 64e9, MACHINE: 2.0}
    assert Need(5, "whole").resources(joined) == {"CPU": 1, "memory": 5, MACHINE: 1.0}
    assert Need(5, "shared").resources(joined) == {"CPU": 1, "memory": 5, MACHINE: PART}
    assert Need(5, "whole").resources({"CPU": 8.0, "GPU": 2.0}) == {"CPU": 1, "memory": 5, "GPU": 1}


@pytest.mark.parametrize("need", [Need(5, "whole"), Need(1 << 40, "shared")])
def test_a_need_crosses_a_command_line(need: Need) -> None:
    assert Need.of(*need.words()) == need
