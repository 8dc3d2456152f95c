"""`/v1/files`: files with the requests of batches and with their results."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.batches.store import StoredFile
from pippin.api.dialects.shared.fields import invalid, unsupported
from pippin.api.http.body import EventStream
from pippin.api.http.forms import Form
from pippin.api.routing import Api, both, json_reply
from pippin.api.stored_responses.response_store import page_of
from pippin.core.errors import ServerError

PIECE: Final = 1 << 18  # bytes sent at once
SHORTEST, LONGEST = 3600, 30 * 24 * 3600  # seconds until a file expires; OpenAI's limits


class FileAnswer(Struct, kw_only=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    status_details: None = None


class DeletedFile(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileUpload(Struct, kw_only=True):
    """The form fields of an upload besides the file itself."""

    purpose: Literal["batch"]


def routes(api: Api) -> list[BaseRoute]:
    files = Files(api)
    return [
        *both("/files", files.create, "POST", body=FileUpload, answer=FileAnswer, form=True),
        *both("/files", files.listed),
        *both("/files/{id}", files.read, answer=FileAnswer),
        *both("/files/{id}", files.delete, "DELETE", answer=DeletedFile),
        *both("/files/{id}/content", files.content),
    ]


def drawn(stored: StoredFile) -> FileAnswer:
    return FileAnswer(
        id=stored.id,
        bytes=stored.bytes,
        created_at=stored.created_at,
        expires_at=stored.expires_at,
        filename=stored.filename,
        purpose=stored.purpose,
    )


@dataclass(frozen=True)
class Files:
    api: Api

    async def create(self, request: Request) -> Response:
        """Stores a file of requests"""
        form = await self.api.handler.form_of(request)
        purpose = _only(form, "purpose")
        if purpose is None:
            raise ServerError("invalid_request", "`purpose` is required.", "purpose")
        if purpose != "batch":
            raise unsupported("purpose", 'only "batch": files are the requests of batches here.')
        upload = form.only_file("file")
        seconds = _expiry(form)
        stored = await asyncio.to_thread(
            self.api.batches.store.add_file,
            exchange_of(request.scope).owner,
            upload.filename or "upload.jsonl",
            purpose,
            (upload.data,),
            expires_at=None if seconds is None else int(time.time()) + seconds,
        )
        return json_reply(drawn(stored))

    async def listed(self, request: Request) -> Response:
        """The caller's files"""
        found = await asyncio.to_thread(self.api.batches.store.files, exchange_of(request.scope).owner)
        purpose = request.query_params.get("purpose")
        shown: list[dict[str, Any]] = [
            {"id": each.id, "file": drawn(each)} for each in found if purpose in (None, each.purpose)
        ]
        page = page_of(shown, request.query_params)
        page["data"] = [each["file"] for each in page["data"]]
        return json_reply(page)

    async def read(self, request: Request) -> Response:
        """What is known of a file"""
        return json_reply(drawn(await self._file(request)))

    async def delete(self, request: Request) -> Response:
        """Deletes a file"""
        stored = await self._file(request)
        store = self.api.batches.store
        await asyncio.to_thread(store.delete_file, exchange_of(request.scope).owner, stored.id)
        return json_reply(DeletedFile(id=stored.id))

    async def content(self, request: Request) -> Response:
        """The bytes of a file"""
        owner, name = exchange_of(request.scope).owner, request.path_params["id"]
        file = await asyncio.to_thread(self.api.batches.store.open_file, owner, name)
        return EventStream(read_in_pieces(file), "application/octet-stream")

    async def _file(self, request: Request) -> StoredFile:
        owner, name = exchange_of(request.scope).owner, request.path_params["id"]
        return await asyncio.to_thread(self.api.batches.store.file, owner, name)


async def read_in_pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The bytes of an open file, read in a thread."""
    with file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


def _only(form: Form, name: str) -> str | None:
    given = form.fields.get(name)
    return given[-1] if given else None


def _expiry(form: Form) -> int | None:
    """Seconds until the file expires, from OpenAI's `expires_after`."""
    anchor, text = _only(form, "expires_after[anchor]"), _only(form, "expires_after[seconds]")
    if text is None:
        return None
    if anchor not in (None, "created_at"):
        raise invalid("expires_after[anchor]", "must be `created_at`.")
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not SHORTEST <= seconds <= LONGEST:
        raise invalid("expires_after[seconds]", f"must be a number from {SHORTEST} to {LONGEST}.")
    return seconds
