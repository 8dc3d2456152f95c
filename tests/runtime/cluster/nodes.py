"""Nodes of a Ray cluster on this machine, as `pippin join` starts them, and what runs on them."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.homes import share_kept
from tests.running_server import ROOT

NODE = "0.6"  # GB that replicas may take
START = 240.0  # seconds: Ray starts a dozen processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    found = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": path}
    share_kept(found)
    return found


@contextlib.contextmanager
def joined(home: Path, *words: str, memory: str = NODE) -> Iterator[subprocess.Popen[bytes]]:
    """A node, until the end of the block. Its processes are all ended with it."""
    command = [sys.executable, "-m", "pippin", "join", "--memory-gb", memory, *words]
    with (home / f"node-{time.monotonic_ns()}.log").open("w") as log:
        node = subprocess.Popen(
            command, env=environment(home), cwd=home, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield node
    finally:
        end(node)


def end(node: subprocess.Popen[bytes]) -> None:
    """As when a machine loses its power."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    node.wait()


def nodes(home: Path, address: str) -> int:
    program = Path(sys.executable).parent / "ray"
    status = subprocess.run(
        [program, "status", "--address", address],
        env={**environment(home), "RAY_AUTH_MODE": "token"},
        capture_output=True,
        text=True,
        check=False,
    )
    return len(re.findall(r"^ 1 node_", status.stdout, re.MULTILINE))


def wait_for(what: str, true: Callable[[], object], seconds: float = START) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def workers(home: Path) -> list[psutil.Process]:
    """The processes of replicas and ranks that were placed by servers with this home, the oldest first."""
    found = [
        each
        for each in psutil.process_iter(["cmdline", "environ"])
        if (each.info["cmdline"] or [])[1:4] == ["-m", "pippin.worker", "-"]
        and (each.info["environ"] or {}).get("HOME") == str(home)
    ]
    return sorted(found, key=lambda each: each.create_time())
