"""The real server as a process that can be killed, started again, and measured from outside."""

import asyncio
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.homes import share_kept

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
CLOCK = """
import mmap, os, struct, sys, time
sys.dont_write_bytecode = True
_real = time.time
with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "clock"), "rb") as _file:
    _clock = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
def _shifted():
    return _real() + struct.unpack("<d", _clock)[0]
time.time = _shifted
"""
"""A `sitecustomize` for the server and its workers: wall time is off by what the file beside its folder says.

The file is mapped into memory: the event loop asks for the time several times a request, and opening a file each time
would have counted as the server's own work. Workers see few variables of the server's environment, so the file is
found from where this one lies. No bytecode is written: on a disk that is full, half of it would stay, and break the
next start."""


@dataclass(frozen=True)
class Reading:
    """What the server takes of the machine."""

    descriptors: int
    threads: int
    megabytes: float
    processes: int


@dataclass
class ServerProcess:
    folder: Path
    flags: list[str]
    file_limit: int | None = None  # bytes that a file may grow to: the disk that is full
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    spawned: set[int] = field(default_factory=set)  # every process that was ever a worker

    def __post_init__(self) -> None:
        (self.folder / "site").mkdir(exist_ok=True)
        (self.folder / "site" / "sitecustomize.py").write_text(CLOCK)
        self.shift_clock(0)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def _clock(self) -> Path:
        return self.folder / "clock"

    @property
    def pid_file(self) -> Path:
        return self.folder / "server.pid"

    def shift_clock(self, seconds: float) -> None:
        """At once, for processes that run and for those that start later."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("<d", seconds))

    async def start(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{self.folder / 'site'}{os.pathsep}{ROOT / 'src'}",
        }
        share_kept(environment)
        command = [sys.executable, "-m", "pippin", "serve", *self.flags, "--port", str(self.port)]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - a fork is short
                command,
                env=environment,
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=self._limit_files if self.file_limit else None,
            )
        self.pid_file.write_text(str(self.process.pid))
        deadline = time.monotonic() + START_SECONDS
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    if (await client.get(f"{self.address}/health", timeout=1)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                status = self.process.poll()
                if status is not None or time.monotonic() > deadline:
                    end = "is silent" if status is None else f"ended with {status}"
                    raise RuntimeError(f"The new server {end}:\n{self.log.read_text()[-5000:]}")
                await asyncio.sleep(0.05)

    def _limit_files(self) -> None:
        """Only the first writes to a file succeed; SIGXFSZ is ignored by Python, so it is an `OSError`."""
        assert self.file_limit is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_limit, self.file_limit))

    def workers(self) -> list[psutil.Process]:
        assert self.process is not None
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.spawned |= {process.pid for process in found}
        return found

    def reading(self) -> Reading:
        assert self.process is not None
        process = psutil.Process(self.process.pid)
        return Reading(
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            megabytes=process.memory_info().rss / (1 << 20),
            processes=1 + len(self.workers()),
        )

    async def stop(self, number: signal.Signals, patience: float = 30.0) -> list[int]:
        """End it; the workers that outlived it."""
        assert self.process is not None
        workers = self.workers()
        self.process.send_signal(number)
        deadline = time.monotonic() + patience
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise RuntimeError(f"The server did not leave within {patience:g} s of {number.name}.")
            await asyncio.sleep(0.02)
        deadline = time.monotonic() + 5
        while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return [worker.pid for worker in workers if worker.is_running()]

    async def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        async with httpx.AsyncClient(timeout=180) as client:
            reply = await client.request(method, self.address + path, json=body)
            return json.loads(reply.content)
