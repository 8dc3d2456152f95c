"""`/v1/files` and `/v1/batches`: OpenAI's Batch API. Requests from a file are answered when nobody else needs the
model, and their results are files."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import IO, Annotated, Any, Final, Literal
from uuid import uuid4

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import check_endpoint
from pippin.api.batches.openai import Endpoint, read_lines
from pippin.api.batches.store import Batch, Counts, Problem, StoredFile
from pippin.api.dialects.responses.dialect import Metadata
from pippin.api.dialects.shared.fields import Contract
from pippin.api.http.body import EventStream
from pippin.api.routing import Api, both, json_reply, on_thread
from pippin.api.stored_responses.response_store import page_of
from pippin.core.decoding import convert
from pippin.core.errors import ServerError

PIECE: Final = 1 << 18  # bytes sent at once
DAY: Final = 24 * 3600  # seconds
MOST_UNFINISHED: Final = 64  # batches of one owner
Lasting = Annotated[int, Meta(ge=3600, le=30 * DAY)]
"""Seconds until a file expires, within OpenAI's limits."""


class DeletedFile(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileUpload(Struct, kw_only=True):
    """The form fields of an upload besides the file itself. Files are the requests of batches here."""

    purpose: Literal["batch"]
    anchor: Literal["created_at"] | None = field(default=None, name="expires_after[anchor]")
    seconds: Lasting | None = field(default=None, name="expires_after[seconds]")


UPLOAD: Final = Contract(FileUpload)


class Files(Struct, frozen=True):
    api: Api

    async def create(self, request: Request) -> Response:
        """Stores a file of requests"""
        form = await self.api.handler.form_of(request)
        fields, unknown = UPLOAD.decode_form(form.fields)
        self.api.handler.note_unknown("files", unknown)
        upload = form.only_file("file")
        stored = await asyncio.to_thread(
            self.api.batches.store.add_file,
            exchange_of(request.scope).owner,
            upload.filename or "upload.jsonl",
            fields.purpose,
            (upload.data,),
            expires_at=None if fields.seconds is None else int(time.time()) + fields.seconds,
        )
        return json_reply(stored)

    def listed(self, request: Request) -> dict[str, Any]:
        """The caller's files"""
        found = self.api.batches.store.files(exchange_of(request.scope).owner)
        purpose = request.query_params.get("purpose")
        shown = [to_builtins(each) for each in found if purpose in (None, each.purpose)]
        return page_of(shown, request.query_params)

    def read(self, request: Request) -> StoredFile:
        """What is known of a file"""
        return self.api.batches.store.file(*owned(request))

    def delete(self, request: Request) -> DeletedFile:
        """Deletes a file"""
        self.api.batches.store.delete_file(*owned(request))
        return DeletedFile(id=request.path_params["id"])

    async def content(self, request: Request) -> Response:
        """The bytes of a file"""
        file = await asyncio.to_thread(self.api.batches.store.open_file, *owned(request))
        return EventStream(read_in_pieces(file), "application/octet-stream")


def owned(request: Request) -> tuple[str, str]:
    """The caller, and the id that the address names."""
    return exchange_of(request.scope).owner, request.path_params["id"]


async def read_in_pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The bytes of an open file, read in a thread."""
    with file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


class OutputExpiry(Struct, kw_only=True):
    anchor: Literal["created_at"]
    seconds: Lasting


class NewBatch(Struct, kw_only=True):
    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


CONTRACT: Final = Contract(NewBatch)


class BatchErrors(Struct, kw_only=True):
    data: list[Problem]
    object: Literal["list"] = "list"


class BatchAnswer(Struct, kw_only=True):
    id: str
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: Counts
    metadata: dict[str, str] | None
    object: Literal["batch"] = "batch"


def routes(api: Api) -> list[BaseRoute]:
    files, batches = Files(api), OpenAIBatches(api)
    return [
        *both("/files", files.create, "POST", body=FileUpload, answer=StoredFile, form=True),
        *both("/files", on_thread(files.listed)),
        *both("/files/{id}", on_thread(files.read), answer=StoredFile),
        *both("/files/{id}", on_thread(files.delete), "DELETE", answer=DeletedFile),
        *both("/files/{id}/content", files.content),
        *both("/batches", batches.create, "POST", body=NewBatch, answer=BatchAnswer),
        *both("/batches", on_thread(batches.listed)),
        *both("/batches/{id}", on_thread(batches.read), answer=BatchAnswer),
        *both("/batches/{id}/cancel", batches.cancel, "POST", answer=BatchAnswer),
    ]


class OpenAIBatches(Struct, frozen=True):
    api: Api

    async def create(self, request: Request) -> Response:
        """Begins a batch"""
        given = await self.api.handler.fields_of(request, "batches", CONTRACT.decode)
        exchange = exchange_of(request.scope)
        if exchange.key is not None:
            check_endpoint(exchange.key, given.endpoint)
        batch = await asyncio.to_thread(self._created, exchange.owner, given)
        reply = json_reply(await asyncio.to_thread(self._drawn, batch))
        if not batch.ended:
            self.api.batches.runner.add(batch)
        return reply

    def listed(self, request: Request) -> dict[str, Any]:
        """The caller's batches"""
        found = self.api.batches.store.batches(exchange_of(request.scope).owner)
        page = page_of([{"id": each.id, "batch": each} for each in found], request.query_params)
        page["data"] = [self._drawn(each["batch"]) for each in page["data"]]
        return page

    def read(self, request: Request) -> BatchAnswer:
        """How far a batch is"""
        return self._drawn(self.api.batches.store.batch(*owned(request)))

    async def cancel(self, request: Request) -> Response:
        """Stops a batch; what was answered stays"""
        batch = await asyncio.to_thread(self.api.batches.store.batch, *owned(request))
        cancelled = await self.api.batches.runner.cancel(batch)
        return json_reply(await asyncio.to_thread(self._drawn, cancelled))

    def _created(self, owner: str, given: NewBatch) -> Batch:
        store = self.api.batches.store
        if store.file(owner, given.input_file_id).purpose != "batch":
            message = "This file holds results; upload one with the purpose `batch`."
            raise ServerError("invalid_request", message, "input_file_id")
        if sum(not each.ended for each in store.batches(owner)) >= MOST_UNFINISHED:
            why = f"You have {MOST_UNFINISHED} batches that are not done, which is the most; wait, or cancel one."
            raise ServerError("rate_limited", why, retry_after=60.0)
        with store.open_file(owner, given.input_file_id) as file:
            lines, problems = read_lines(file, given.endpoint)
        now = int(time.time())
        batch = Batch(
            id="batch_" + uuid4().hex,
            owner=owner,
            endpoint=given.endpoint,
            input_file=given.input_file_id,
            created_at=now,
            expires_at=now + DAY,
            window=given.completion_window,
            metadata=given.metadata or {},
            output_expires_after=given.output_expires_after.seconds if given.output_expires_after else None,
        )
        if problems:
            batch.status, batch.problems = "failed", problems
            batch.times["failed"] = now
        store.add_batch(batch, lines)
        return batch

    def _drawn(self, batch: Batch) -> BatchAnswer:
        fields = dict.fromkeys(BatchAnswer.__struct_fields__) | asdict(batch) | {"object": "batch"}
        fields |= {f"{status}_at": begun for status, begun in batch.times.items()}
        fields |= {
            "errors": BatchErrors(data=batch.problems) if batch.problems else None,
            "input_file_id": batch.input_file,
            "completion_window": batch.window,
            "output_file_id": batch.output_file,
            "error_file_id": batch.error_file,
            "request_counts": self.api.batches.store.counts(batch),
            "metadata": batch.metadata or None,
        }
        return convert(fields, BatchAnswer)
