"""`/v1/messages/batches`: Anthropic's Message Batches, answered when nobody else needs the model."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import check_endpoint
from pippin.api.batches.anthropic import PATH, AnthropicResults, GivenBatch, check_requests, file_of
from pippin.api.batches.runner import new_id, spans
from pippin.api.batches.store import Batch, Counts, Line
from pippin.api.dialects.shared.fields import Contract
from pippin.api.http.body import EventStream
from pippin.api.routes.batches import DAY, check_unfinished
from pippin.api.routes.files import drawn_in_pieces, nothing
from pippin.api.routing import VERSION, Api, both, json_reply
from pippin.core.errors import ServerError

LINES: Final = "application/x-jsonl"
CONTRACT: Final = Contract(GivenBatch)


class MessageCounts(Struct, kw_only=True):
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatchAnswer(Struct, kw_only=True):
    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    ended_at: str | None
    created_at: str
    expires_at: str
    archived_at: str | None = None
    cancel_initiated_at: str | None
    results_url: str | None
    type: Literal["message_batch"] = "message_batch"


class DeletedMessageBatch(Struct, kw_only=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


def routes(api: Api) -> list[BaseRoute]:
    batches = MessageBatches(api)
    answer = MessageBatchAnswer
    return [
        *both("/messages/batches", batches.create, "POST", body=GivenBatch, answer=answer),
        *both("/messages/batches", batches.listed),
        *both("/messages/batches/{id}", batches.read, answer=answer),
        *both("/messages/batches/{id}", batches.delete, "DELETE", answer=DeletedMessageBatch),
        *both("/messages/batches/{id}/cancel", batches.cancel, "POST", answer=answer),
        *both("/messages/batches/{id}/results", batches.results, media=(LINES,)),
    ]


def drawn(batch: Batch, counts: Counts, base: str) -> MessageBatchAnswer:
    shown = MessageCounts(succeeded=counts.succeeded, errored=counts.failed)
    if not batch.ended:
        shown.processing = counts.open
    elif "cancelling" in batch.times:
        shown.canceled = counts.open
    else:
        shown.expired = counts.open
    status: Literal["in_progress", "canceling", "ended"] = "ended" if batch.ended else "in_progress"
    if batch.status == "cancelling":
        status = "canceling"
    return MessageBatchAnswer(
        id=batch.id,
        processing_status=status,
        request_counts=shown,
        ended_at=_timestamp(batch.times.get(batch.status)) if batch.ended else None,
        created_at=_timestamp(batch.created_at) or "",
        expires_at=_timestamp(batch.expires_at) or "",
        cancel_initiated_at=_timestamp(batch.times.get("cancelling")),
        results_url=f"{base}{VERSION}/messages/batches/{batch.id}/results" if batch.ended else None,
    )


def _timestamp(seconds: int | None) -> str | None:
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    )


@dataclass(frozen=True)
class MessageBatches:
    api: Api

    async def create(self, request: Request) -> Response:
        """Begins a batch of messages"""
        given, unknown = await self.api.handler.json_of(request, CONTRACT.decode)
        self.api.handler.note_unknown("message_batches", unknown)
        exchange = exchange_of(request.scope)
        if exchange.key is not None:
            check_endpoint(exchange.key, PATH)
        batch = await asyncio.to_thread(self._created, exchange.owner, given)
        self.api.batches.runner.add(batch)
        return json_reply(await self._drawn(batch, request))

    async def listed(self, request: Request) -> Response:
        """The caller's batches of messages, newest first"""
        found = await asyncio.to_thread(self.api.batches.store.batches, exchange_of(request.scope).owner)
        own = [each for each in reversed(found) if each.api == "anthropic"]
        page, more = _page(own, request)
        data = [await self._drawn(each, request) for each in page]
        return json_reply(
            {
                "data": data,
                "has_more": more,
                "first_id": data[0].id if data else None,
                "last_id": data[-1].id if data else None,
            }
        )

    async def read(self, request: Request) -> Response:
        """How far a batch of messages is"""
        return json_reply(await self._drawn(await self._batch(request), request))

    async def cancel(self, request: Request) -> Response:
        """Stops a batch of messages; what was answered stays"""
        batch = await self.api.batches.runner.cancel(await self._batch(request))
        return json_reply(await self._drawn(batch, request))

    async def delete(self, request: Request) -> Response:
        """Deletes a batch of messages that has ended, and its results"""
        batch = await self._batch(request)
        if not batch.ended:
            raise ServerError("invalid_request", "The batch has not ended; cancel it first.", "id")
        await asyncio.to_thread(self.api.batches.store.delete_batch, batch)
        return json_reply(DeletedMessageBatch(id=batch.id))

    async def results(self, request: Request) -> Response:
        """The results of a batch of messages, one in each line"""
        batch = await self._batch(request)
        if not batch.ended:
            raise ServerError("not_found", "The batch has not ended; its results come when it has.", "id")
        lines = self._results(batch)
        return EventStream(drawn_in_pieces(lines), nothing, LINES)

    def _results(self, batch: Batch) -> Iterator[bytes]:
        answers = AnthropicResults("canceled" if "cancelling" in batch.times else "expired")
        return (answers.result(line) + b"\n" for line in self.api.batches.store.lines(batch.id))

    def _created(self, owner: str, given: GivenBatch) -> Batch:
        store = self.api.batches.store
        check_unfinished(store.batches(owner))
        check_requests(given.requests)
        stored = store.add_file(owner, "requests.jsonl", "batch", file_of(given.requests), prefix="msgfile-")
        with store.open_file(owner, stored.id) as file:
            lines = [
                Line(number, request.custom_id, start, length)
                for number, (request, (start, length, _)) in enumerate(
                    zip(given.requests, spans(file), strict=True)
                )
            ]
        now = int(time.time())
        batch = Batch(
            id=new_id("msgbatch_"),
            owner=owner,
            api="anthropic",
            endpoint=PATH,
            input_file=stored.id,
            created_at=now,
            expires_at=now + DAY,
        )
        store.add_batch(batch, lines)
        return batch

    async def _batch(self, request: Request) -> Batch:
        owner, name = exchange_of(request.scope).owner, request.path_params["id"]
        batch = await asyncio.to_thread(self.api.batches.store.batch, owner, name)
        if batch.api != "anthropic":
            raise ServerError("not_found", "This is no batch of messages; see /v1/batches.", "id")
        return batch

    async def _drawn(self, batch: Batch, request: Request) -> MessageBatchAnswer:
        base = str(request.base_url).rstrip("/")
        return drawn(batch, await asyncio.to_thread(self.api.batches.store.counts, batch), base)


def _page(batches: list[Batch], request: Request) -> tuple[list[Batch], bool]:
    """A page of Anthropic's lists, by `limit` and `after_id` or `before_id`, and whether there are more entries."""
    query = request.query_params
    text = query.get("limit", "20")
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= limit <= 1000:
        raise ServerError("invalid_request", "`limit` must be a number from 1 to 1000.", "limit")
    ids = [each.id for each in batches]
    for name in ("after_id", "before_id"):
        if (cursor := query.get(name)) is None:
            continue
        if cursor not in ids:
            raise ServerError("invalid_request", f"`{name}` must be the id of one of the batches.", name)
        at = ids.index(cursor)
        batches = batches[at + 1 :] if name == "after_id" else batches[max(0, at - limit) : at]
        break
    return batches[:limit], len(batches) > limit
