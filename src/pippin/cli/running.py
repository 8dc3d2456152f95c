"""The running server: how to find it, how to send it requests, and how it ends with the process that started it.

An owner and its server share a pipe, the input of the server. The owner holds the write end and never writes; the
kernel closes it even if the owner is killed, and the server then reads end of file.
"""

import contextlib
import fcntl
import json
import os
import signal
import stat
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from pippin.config import environment
from pippin.core.decoding import from_json
from pippin.core.errors import ErrorKind, ServerError
from pippin.core.logs import without_secrets

if TYPE_CHECKING:
    from http.client import HTTPResponse

DEFAULT_ADDRESS: Final = "http://127.0.0.1:8000"
IN_PATHS: Final = "/%?=&:@,+~"  # characters that are not escaped
LOAD_SECONDS: Final = 3600.0  # loading may include a download
KINDS: Final[dict[int, ErrorKind]] = {401: "authentication", 404: "model_not_found"}
"""What statuses of an answer mean."""


class RunningServer(Struct, frozen=True, kw_only=True):
    """Facts about a running server, which it keeps in a file in Pippin's folder."""

    pid: int
    address: str
    started: float  # seconds since the epoch
    log: str | None = None  # its log file, if it logs to a file


def log_file(named: str | None) -> str | None:
    """The log file of this process: the named file, or the file that standard error goes to."""
    if named is not None:
        return str(Path(named).expanduser().resolve())
    try:
        if not stat.S_ISREG(os.fstat(2).st_mode):
            return None
        if sys.platform == "darwin":  # whose files in /dev/fd are no links
            found = Path(os.fsdecode(fcntl.fcntl(2, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        else:
            found = Path("/proc/self/fd/2").resolve()
    except OSError:
        return None
    return str(found) if found.is_file() else None


@contextlib.contextmanager
def announced(server: RunningServer) -> Iterator[None]:
    """Keep the file of a server while the server runs.

    The file is locked, and the lock ends with the process, however it ends. A process id alone would not do, because it
    may be reused by another process.
    """
    folder = environment.home() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{server.pid}.json"
    begun = path.with_suffix(".begun")
    with begun.open("wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(msgspec.json.encode(server))
        begun.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running_servers() -> list[RunningServer]:
    """The running servers, the newest first. Removes the files of dead servers."""
    found: list[RunningServer] = []
    for path in (environment.home() / "run").glob("*.json"):
        server = _living(path)
        if server is None:
            path.unlink(missing_ok=True)
        else:
            found.append(server)
    return sorted(found, key=lambda server: -server.started)


def _living(path: Path) -> RunningServer | None:
    """The server of a file if it still holds the lock; None if it is dead."""
    with contextlib.suppress(OSError, msgspec.DecodeError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return from_json(file.read(), RunningServer)
    return None


def address(parsed: Namespace) -> str:
    named = parsed.server or environment.server_address()
    if named:
        text = str(named).rstrip("/")
        return text if "://" in text else f"http://{text}"
    servers = running_servers()
    return servers[0].address if servers else DEFAULT_ADDRESS


def is_there(parsed: Namespace) -> bool:
    """Whether a server is named, or this user runs one."""
    return bool(parsed.server or environment.server_address() or running_servers())


class Client(Struct, frozen=True):
    """A server's address and the API key for it."""

    address: str
    key: str | None = None

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The server's answer. Raises `ServerError` with the server's message if it refuses."""
        with self.answering(method, path, body) as response:
            answer = response.read()
        return json.loads(answer) if answer else None

    @contextlib.contextmanager
    def answering(self, method: str, path: str, body: Any = None) -> "Iterator[HTTPResponse]":
        """The answer while it is read. Raises `ServerError` if the server refuses, or if none answers to the end."""
        # With Python's own client: to import a larger one takes as long as all else that a command does.
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import ProxyHandler, Request, build_opener

        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        asked = Request(self.address + quote(path, safe=IN_PATHS), data, headers, method=method)
        try:
            with build_opener(ProxyHandler({})).open(asked, timeout=LOAD_SECONDS) as response:
                yield response
        except HTTPError as error:
            raise ServerError(KINDS.get(error.code, "internal"), refusal(error.code, error.read())) from None
        except (OSError, HTTPException) as error:
            name = type(getattr(error, "reason", error)).__name__
            message = (
                f"No server answers at {without_secrets(self.address)} ({name}). `pippin logs` shows what happened. "
                "Start one: pippin serve"
            )
            raise ServerError("not_found", message) from None


def client_of(parsed: Namespace) -> Client:
    return Client(address(parsed), parsed.api_key or environment.client_key())


def ask(parsed: Namespace, method: str, path: str, body: Any = None) -> Any:
    """The server's answer to one request. Raises `ServerError` with the server's message if it refuses."""
    return client_of(parsed).request(method, path, body)


def refusal(status: int, answer: bytes) -> str:
    """The message in an error's body, in any dialect."""
    try:
        body = json.loads(answer)
    except ValueError:
        body = None
    error = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else f"The server answered {status}."


def end_with_owner() -> None:
    """Send this process SIGTERM when its owner is gone. Does nothing if it has no owner."""
    if environment.is_owned():
        threading.Thread(target=end_at_the_end_of, args=(0,), name="owner", daemon=True).start()


def end_at_the_end_of(descriptor: int) -> None:
    """Wait for the end of a pipe, and send this process SIGTERM."""
    with contextlib.suppress(OSError):
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)
