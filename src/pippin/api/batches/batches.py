"""The batches of a server: their store, their runner, and how a line is sent to the server itself."""

from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from pippin.api.access.guards import check_endpoint
from pippin.api.access.keys import KeysInForce, salts_by_owner
from pippin.api.answers.answer import RunningAnswers
from pippin.api.batches.folder import Folder
from pippin.api.batches.inside import Inside, Reply
from pippin.api.batches.openai import request_of
from pippin.api.batches.runner import BatchRunner, refused
from pippin.api.batches.store import Batch, BatchStore
from pippin.config.environment import home
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError

WITHDRAWN: Final = ErrorReport(
    kind="permission", message="The API key to which this batch belongs is not known any more."
)


class Batches:
    """Made before the application that answers its lines; `connect` brings the two together."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._inside = Inside()
        self._running: RunningAnswers | None = None
        self._keys: KeysInForce | None = None
        self.store = BatchStore(Folder(folder_of(options)), megabytes=options.files_mb)
        self.runner = BatchRunner(self.store, self._ask, self.others, options.batch_concurrency)

    def connect(self, app: ASGIApp, running: RunningAnswers, keys: KeysInForce) -> None:
        """`app` answers the lines; `running` counts other running requests; `keys` are the guard's keys, so that a key
        opens as much to a line of a batch as to a direct request."""
        self._inside.app = app
        self._running = running
        self._keys = keys

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to batches."""
        self._options = options

    def others(self) -> int:
        """The number of running requests that are not lines of batches."""
        return self._running.live if self._running is not None else 0

    async def _ask(self, batch: Batch, text: bytes) -> Reply:
        assert self._keys is not None
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
        return await self._inside.post(path, body, key=key, owner=batch.owner, salted=salted)


def folder_of(options: ServerOptions) -> Path:
    """Where files and batches are kept: the option's folder, else one beside Pippin's other data."""
    if options.files_dir is not None:
        return Path(options.files_dir).expanduser()
    return home() / "files"
