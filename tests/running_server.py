"""A `pippin serve` of its own for tests over a socket."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.homes import share_kept

ROOT = Path(__file__).resolve().parent.parent
MAC = "PIPPIN_TEST_MAC"  # of `tests.as_on_a_mac`, for workers too
SECONDS = 300  # the demo model warms up slowly on a machine that is shared


@dataclass(frozen=True)
class Running:
    address: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def running_server(home: Path, *words: str, **how: Any) -> Iterator[str]:
    """The address of what `running_process` runs."""
    with running_process(home, *words, **how) as running:
        yield running.address


@contextlib.contextmanager
def running_process(
    home: Path,
    *words: str,
    source: Path = ROOT / "src",
    module: str = "pippin",
    kill: bool = False,
    verb: str = "serve",
    ready: str = r"is ready after",
    variables: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Serve what `words` say on a free port, with a home of its own; gives it once the log says `ready`.

    Pippin is imported from the folder `source`, and `module` is run as its command. The output is in `server.log` in
    `home`. Linear algebra keeps to one thread, so that tests can share a machine. With `kill` it ends by SIGKILL, as
    in a crash.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    if MAC in os.environ:
        environment |= {MAC: os.environ[MAC], "PIPPIN_WORKER_VARIABLES": MAC}
        environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests/as_on_a_mac/site'}"
    output = home / "server.log"
    environment |= variables or {}
    share_kept(environment)
    command = [sys.executable, "-m", module, verb, "--port", "0", *words]
    with output.open("w") as file:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=file, stderr=subprocess.STDOUT)
    try:
        _wait(process, output, ready)
        found = re.search(r"serves at (http://\S+)", output.read_text())
        assert found is not None
        yield Running(found[1], process)
    finally:
        process.kill() if kill else process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], output: Path, pattern: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not re.search(pattern, output.read_text()):
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
