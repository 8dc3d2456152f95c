"""`pippin` in a home of its own, for tests that start the real command."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import share_kept

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30


class Terminal:
    """A home of its own, and `pippin` in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
        share_kept(self.environment)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pippin", *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    @contextlib.contextmanager
    def serving(self, *words: str, verb: str = "serve") -> Iterator["Serving"]:
        output = self.home / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pippin", verb, *words, "--port", "0"],
                env=self.environment,
                cwd=self.home,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Serving(process, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


class Serving:
    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output
        self.address = self.wait_for(r"serves at (http://\S+)")

    def wait_for(self, pattern: str, seconds: float = SECONDS) -> str:
        """The first group of a line that the server prints; fails if it ends before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.output.read_text()):
                return found.group(1)
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in: {self.output.read_text()}")

    def ended(self) -> int:
        return self.process.wait(SECONDS)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)
