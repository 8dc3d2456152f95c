"""The batches of a server: their store, their runner, and how a line is sent to the server itself."""

import asyncio
import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from starlette.types import ASGIApp

from pippin.api.access.exchange import SCOPE_KEY, Exchange
from pippin.api.access.guards import check_endpoint
from pippin.api.access.keys import Key, KeysInForce, salts_by_owner
from pippin.api.answers.answer import RunningAnswers
from pippin.api.batches.openai import request_of
from pippin.api.batches.runner import CAME_TO_NOTHING, LONGEST_WAIT, BatchRunner, Reply, refused
from pippin.api.batches.store import Batch, BatchStore, Folder
from pippin.api.stored_responses.response_store import ResponseStore
from pippin.config.environment import home
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError

log = logging.getLogger(__name__)

HEADERS: Final = [(b"content-type", b"application/json")]
WITHDRAWN: Final = ErrorReport(
    kind="permission", message="The API key to which this batch belongs is not known any more."
)


class Batches:
    """Made before the application that answers its lines; `connect` brings the two together."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._app: ASGIApp | None = None
        self._running: RunningAnswers | None = None
        self._keys: KeysInForce | None = None
        self._responses: ResponseStore | None = None
        self._again: set[asyncio.Task[None]] = set()
        self.store = BatchStore(Folder(folder_of(options)), megabytes=options.files_mb)
        self.runner = BatchRunner(self.store, self._ask, self.others, options.batch_concurrency)

    def connect(
        self, app: ASGIApp, running: RunningAnswers, keys: KeysInForce, responses: ResponseStore
    ) -> None:
        """`app` answers the lines; `running` counts other running requests; `keys` are the guard's keys, so that a key
        opens as much to a line of a batch as to a direct request; `responses` are those of the application."""
        self._app = app
        self._running = running
        self._keys = keys
        self._responses = responses

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to batches."""
        self._options = options

    def others(self) -> int:
        """The number of running requests that are not lines of batches."""
        return self._running.live if self._running is not None else 0

    def start(self) -> None:
        """Go on with what an earlier server left unfinished: batches, and responses in the background."""
        self.runner.start()
        assert self._responses is not None
        try:
            unfinished = self._responses.take_unfinished()
        except ServerError as error:
            log.warning("Responses in the background are not begun again: %s", error.report.message)
            return
        for owner, own, body in unfinished:
            log.info("The response %s is begun again.", own)
            task = asyncio.create_task(self._begin_again(owner, own, body), name=f"begin {own} again")
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _begin_again(self, owner: str, id: str, body: bytes) -> None:
        assert self._keys is not None
        assert self._app is not None
        assert self._responses is not None
        salted = salts_by_owner(self._options, self._keys.ring)
        reply = refused(WITHDRAWN)
        while (key := self._keys.ring.of_owner(owner)) is not None or not owner:
            reply = await post(self._app, "/v1/responses", body, key=key, owner=owner, salted=salted, id=id)
            if reply.status not in CAME_TO_NOTHING:
                break
            await asyncio.sleep(LONGEST_WAIT)
        if reply.status >= 400:
            await asyncio.to_thread(self._responses.ends, owner, id)

    async def _ask(self, batch: Batch, text: bytes) -> Reply:
        assert self._keys is not None
        assert self._app is not None
        key = self._keys.ring.of_owner(batch.owner)
        if batch.owner and key is None:
            return refused(WITHDRAWN)
        if key is not None:
            try:
                check_endpoint(key, batch.endpoint)
            except ServerError as error:  # the right was withdrawn since the batch began
                return refused(error.report)
        path, body = request_of(text)
        salted = salts_by_owner(self._options, self._keys.ring)
        return await post(self._app, path, body, key=key, owner=batch.owner, salted=salted)


def folder_of(options: ServerOptions) -> Path:
    """Where files and batches are kept: the option's folder, else one beside Pippin's other data."""
    if options.files_dir is not None:
        return Path(options.files_dir).expanduser()
    return home() / "files"


async def post(
    app: ASGIApp, path: str, body: bytes, *, key: Key | None, owner: str, salted: bool, id: str = ""
) -> Reply:
    """Send a request to the server itself, as a client would, with the rights of a batch's owner.

    It goes to the routes without the guards in front of them, whose checks were made for the batch, at the lowest
    priority. `id`: of the answer, if it has one already.
    """
    exchange = Exchange(
        id=id or uuid4().hex,
        path=path,
        caller="a batch" if key is None else key.name,
        key=key,
        cache_salt=owner if salted else "",
        background=True,
    )
    reply = Reply(exchange.id)
    given = False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # until the request is cancelled: this client does not hang up
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
        else:
            reply.body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [*HEADERS, (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
        SCOPE_KEY: exchange,
    }
    await app(scope, receive, send)
    return reply
