"""The batches of a server: their store, their runner, and how a line is sent to the server itself."""

import asyncio
import logging
from pathlib import Path
from typing import Final
from uuid import uuid4

from starlette.types import ASGIApp, Receive, Scope, Send

from pippin.api.access.exchange import SCOPE_KEY, Exchange
from pippin.api.access.guards import check_endpoint
from pippin.api.access.keys import Key, Keyring
from pippin.api.answers.answer import RunningAnswers
from pippin.api.batches.openai import request_of
from pippin.api.batches.runner import CAME_TO_NOTHING, LONGEST_WAIT, BatchRunner, Reply, refused
from pippin.api.batches.store import Batch, BatchStore
from pippin.api.stored_responses.response_store import ResponseStore
from pippin.config.environment import home
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError

log = logging.getLogger(__name__)

HEADERS: Final = {"content-type": "application/json"}
WITHDRAWN: Final = ErrorReport(
    kind="permission", message="The API key to which this batch belongs is not known any more."
)


class Batches:
    app: ASGIApp
    """The application that answers the lines: it is made with this object, and sets itself here."""

    def __init__(
        self, options: ServerOptions, running: RunningAnswers, keys: Keyring, responses: ResponseStore
    ) -> None:
        """`running` counts other running requests; `keys` are the guard's keys, so that a key opens as much to a line
        of a batch as to a direct request; `responses` are those of the application."""
        self._options = options
        self._running = running
        self._keys = keys
        self._responses = responses
        self._again: set[asyncio.Task[None]] = set()
        self.store = BatchStore(folder_of(options), megabytes=options.files_mb)
        self.runner = BatchRunner(self.store, self._ask, self.others, options.batch_concurrency)

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to batches."""
        self._options = options

    def others(self) -> int:
        """The number of running requests that are not lines of batches."""
        return self._running.live

    def start(self) -> None:
        """Go on with what an earlier server left unfinished: batches, and responses in the background."""
        self.runner.start()
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
        reply = refused(WITHDRAWN)
        while (key := self._keys.of_owner(owner)) is not None or not owner:
            reply = await self._post("/v1/responses", body, key, owner, id)
            if reply.status not in CAME_TO_NOTHING:
                break
            await asyncio.sleep(LONGEST_WAIT)
        if reply.status >= 400:
            await asyncio.to_thread(self._responses.ends, owner, id)

    async def _ask(self, batch: Batch, text: bytes) -> Reply:
        key = self._keys.of_owner(batch.owner)
        if batch.owner and key is None:
            return refused(WITHDRAWN)
        if key is not None:
            try:
                check_endpoint(key, batch.endpoint)
            except ServerError as error:  # the right was withdrawn since the batch began
                return refused(error.report)
        path, body = request_of(text)
        return await self._post(path, body, key, batch.owner, uuid4().hex)

    async def _post(self, path: str, body: bytes, key: Key | None, owner: str, id: str) -> Reply:
        """Send a request to the server itself, as a client would, with the rights of a batch's owner.

        It goes to the routes without the guards in front of them, whose checks were made for the batch, at the lowest
        priority. `id`: of the answer.
        """
        import httpx  # slow to import, and only needed here

        exchange = Exchange(
            id=id,
            path=path,
            caller="a batch" if key is None else key.name,
            key=key,
            cache_salt=owner if self._keys.salts(self._options) else "",
            background=True,
        )

        async def asked(scope: Scope, receive: Receive, send: Send) -> None:
            await self.app({**scope, SCOPE_KEY: exchange}, receive, send)

        transport = httpx.ASGITransport(asked)
        async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as client:
            answer = await client.post(path, content=body, headers=HEADERS)
        return Reply(id, answer.status_code, answer.content)


def folder_of(options: ServerOptions) -> Path:
    """Where files and batches are kept: the option's folder, else one beside Pippin's other data."""
    if options.files_dir is not None:
        return Path(options.files_dir).expanduser()
    return home() / "files"
