"""A PostgreSQL server for tests: its own folder, on a free port of this machine, and gone with the tests."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

SETTINGS = """
port = {port}
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
shared_buffers = 16MB
"""
USER = "postgres"  # as whom it runs where the tests run as root, as it will not


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, which Debian keeps out of the path; None where they, or psycopg, are not."""
    if find_spec("psycopg") is None:
        return None
    found = shutil.which("initdb") or max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
    return None if found is None else Path(found).parent


class PostgresServer:
    """One server. What is stopped may be started again, with what was in it."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._run("initdb", "-A", "trust", "-U", "pippin", "--no-sync", "-E", "UTF8", "--locale", "C")
        settings = folder / "data" / "postgresql.conf"
        settings.write_text(settings.read_text() + SETTINGS.format(port=self.port))

    @property
    def address(self) -> str:
        return f"postgresql://pippin:secret@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "start")

    def stop(self, how: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-m", how, "stop")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes connections, as the kernel does, and says nothing."""
        own = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        everything = [own, *own.children(recursive=True)]
        for process in everything:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in everything:
                # A connection that was given up ends as soon as the server goes on.
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self._programs / program, "-D", self._folder / "data", *words],
            cwd=self._folder,
            check=True,
            stdout=subprocess.DEVNULL,  # what it starts would keep a pipe open
            stderr=subprocess.DEVNULL,
            user=USER if os.getuid() == 0 else None,
        )


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    where = programs()
    assert where is not None
    # Not below pytest's folder, which nobody but root may enter where root runs the tests.
    with TemporaryDirectory(prefix="pippin-postgres-") as name:
        if os.getuid() == 0:
            shutil.chown(name, USER)
        server = PostgresServer(Path(name), where)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
