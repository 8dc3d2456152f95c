"""A person with a browser: opens the address that grants access, and receives the browser's redirect."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

PATH: Final = "/callback"
GRANTED: Final = b"Pippin has what it needs. This window can be closed."
REFUSED: Final = b"Access was not granted. This window can be closed."
LONGEST_REASON: Final = 200  # characters
PATIENCE: Final = 600.0  # seconds for a person to log in


class Granted(Struct, frozen=True, kw_only=True):
    """What the authorization server passed on through the browser."""

    code: str
    state: str | None = None
    issuer: str | None = None


class NotGranted(Exception):
    """The person or the authorization server denied access. The message may be shown."""


def granted_of(address: str) -> Granted:
    """The result in the address that the browser was sent to. Raises `NotGranted`."""
    found = {name: values[0] for name, values in parse_qs(urlsplit(address.strip()).query).items()}
    if "error" in found:
        why = found.get("error_description") or found["error"]
        # The text is untrusted and is shown in a terminal.
        shown = "".join(letter for letter in why if letter.isprintable())[:LONGEST_REASON]
        raise NotGranted(f"Access was not granted: {shown}.")
    if "code" not in found:
        raise NotGranted("The address holds no code; it is the one that the browser shows at the very end.")
    return Granted(code=found["code"], state=found.get("state"), issuer=found.get("iss"))


class Browser:
    """A browser on this machine, which reaches Pippin at the loopback address during the login."""

    def __init__(self, show: Callable[[str], object], port: int, answers: "asyncio.Queue[str]") -> None:
        """`show` displays an address to the person."""
        self._show = show
        self._port = port
        self._answers = answers

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    async def ask(self, address: str) -> None:
        while not self._answers.empty():
            self._answers.get_nowait()  # drop answers to an earlier question
        await asyncio.to_thread(self._show, address)

    async def answer(self) -> Granted:
        """Raises `NotGranted`, or `TimeoutError` after `PATIENCE` seconds."""
        async with asyncio.timeout(PATIENCE):
            return granted_of(await self._answers.get())


class Paster:
    """A person whose browser is on another machine, and who pastes the final address."""

    def __init__(self, show: Callable[[str], object], read: Callable[[], str], port: int) -> None:
        self._show = show
        self._read = read
        self.redirect_uri = f"http://127.0.0.1:{port}{PATH}"

    async def ask(self, address: str) -> None:
        await asyncio.to_thread(self._show, address)

    async def answer(self) -> Granted:
        """Raises `NotGranted`."""
        return granted_of(await asyncio.to_thread(self._read))


@contextlib.asynccontextmanager
async def browser(show: Callable[[str], object], port: int = 0) -> AsyncIterator[Browser]:
    """A browser whose redirects are received in this context. Raises `OSError` if the port can't be used."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[str] = asyncio.Queue()

    class Callback(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if urlsplit(self.path).path != PATH:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            with contextlib.suppress(RuntimeError):  # the login has just ended
                loop.call_soon_threadsafe(answers.put_nowait, self.path)
            words = GRANTED if "code=" in self.path else REFUSED
            self.send_response(HTTPStatus.OK)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", str(len(words)))
            self.end_headers()
            self.wfile.write(words)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: the address contains a secret."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Callback)
    listening = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    listening.start()
    try:
        yield Browser(show, server.server_port, answers)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
