"""`/v1/responses`: creates, reads, follows, cancels, deletes and compacts responses, and counts their input. It alone
speaks WebSocket too.

`/v1/conversations`: items that responses go on with."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.answers.answer import Answer, Operation
from pippin.api.answers.kept import KeptAnswers
from pippin.api.dialects.registry import VERSION
from pippin.api.dialects.responses import answer as answers
from pippin.api.dialects.responses.answer import ItemPage, response_id, stored_items
from pippin.api.dialects.responses.dialect import CompactionDialect, Metadata, ResponsesBody, ResponsesDialect
from pippin.api.dialects.responses.items import Item, ItemsReader
from pippin.api.dialects.shared.fields import decode_json
from pippin.api.http.body import Presence, hold
from pippin.api.routing import Api, both, json_reply, number_of
from pippin.api.sockets import ResponsesSocket
from pippin.api.stored_responses.response_store import OwnedHistory, StoredConversation, page_of
from pippin.api.stored_responses.saving import TERMINAL, BackgroundResponse, SavingDialect, SavingEncoder
from pippin.core.errors import ErrorReport, ServerError

NO_SOCKET: Final = ErrorReport(
    kind="method_not_allowed",
    message="This address speaks no WebSocket; /v1/responses does. To talk with a model, use /v1/audio/transcriptions"
    " and /v1/audio/speech.",
)
STOPPED: Final = {"code": "server_error", "message": "The server stopped before the response was complete."}


MOST_ITEMS: Final = 20
"""Items that one call may add; OpenAI's limit."""

Work = Callable[[OwnedHistory, Request, bytes], Any]
"""What an endpoint makes of the caller's history for a request and its body."""

Items = Annotated[list[dict[str, Any]], Meta(max_length=MOST_ITEMS)]


class NewConversation(Struct, kw_only=True):
    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(Struct, kw_only=True):
    metadata: Metadata | None = None


class DeletedConversation(Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class NewItems(Struct, kw_only=True):
    items: Items = field(default_factory=list)


def routes(api: Api) -> list[BaseRoute]:
    responses = Responses(api)

    def conversation(path: str, work: Work, *methods: str, **known: Any) -> list[Route]:
        async def answer(request: Request) -> Response:
            body = await api.handler.body_of(request) if request.method == "POST" else b""
            history = history_of(api, request)
            # In a thread: stored items may be large, and the disk slow.
            return await asyncio.to_thread(lambda: json_reply(work(history, request, body)))

        return both(f"/conversations{path}", answer, *methods, **known)

    async def serve_socket(socket: WebSocket) -> None:
        await ResponsesSocket(api, socket).serve()

    async def refuse_socket(socket: WebSocket) -> None:
        await socket.send_denial_response(api.errors.reply(NO_SOCKET, socket.scope))

    return [
        *both("/responses", responses.create, "POST"),
        *(WebSocketRoute(f"{prefix}/responses", serve_socket) for prefix in (VERSION, "")),
        WebSocketRoute("/{path:path}", refuse_socket),
        *both(
            "/responses/input_tokens", responses.count, "POST", body=ResponsesBody, answer=answers.InputTokens
        ),
        *both(
            "/responses/compact",
            responses.compact,
            "POST",
            body=ResponsesBody,
            answer=answers.CompactedConversation,
        ),
        *both("/responses/{id}", responses.read, "GET", answer=answers.ResponseAnswer),
        *both("/responses/{id}", responses.delete, "DELETE", answer=answers.DeletedResponse),
        *both("/responses/{id}/cancel", responses.cancel, "POST", answer=answers.ResponseAnswer),
        *both("/responses/{id}/input_items", responses.input_items, "GET", answer=ItemPage),
        *conversation("", create, "POST", body=NewConversation, answer=StoredConversation, optional=True),
        *conversation("/{id}", lambda kept, asked, _: kept.head(named(asked)), answer=StoredConversation),
        *conversation("/{id}", change, "POST", body=ChangedConversation, answer=StoredConversation),
        *conversation("/{id}", delete, "DELETE", answer=DeletedConversation),
        *conversation("/{id}/items", items, answer=ItemPage),
        *conversation("/{id}/items", add_items, "POST", body=NewItems, answer=ItemPage),
        *conversation("/{id}/items/{item}", lambda kept, asked, _: kept.item_of(**asked.path_params)),
        *conversation(
            "/{id}/items/{item}",
            lambda kept, asked, _: kept.delete_item(**asked.path_params),
            "DELETE",
            answer=StoredConversation,
        ),
    ]


COUNTED: Final = ResponsesDialect()
COMPACTED: Final = CompactionDialect()


class Responses(Struct, frozen=True):
    """The endpoints of stored, streamed and background responses."""

    api: Api
    background: KeptAnswers[BackgroundResponse] = field(default_factory=KeptAnswers)

    async def create(self, request: Request) -> Response:
        """Answer a request for a response, and store it."""
        handler, exchange = self.api.handler, exchange_of(request.scope)
        history = history_of(self.api, request)
        dialect = SavingDialect(history)
        body = await handler.body_of(request)
        operation = await handler.prepare(request, dialect, history=history, body=body)
        encoder = operation.encoder
        if not isinstance(encoder, SavingEncoder):
            return await handler.answers.reply(request, operation)
        if encoder.background:
            return await self._run_in_background(exchange, operation, encoder, body)
        return await handler.answers.reply(request, operation, encoder.save)

    async def count(self, request: Request) -> Response:
        history = history_of(self.api, request)
        tokens = await self.api.handler.count(request, COUNTED, history=history)
        return json_reply(answers.InputTokens(input_tokens=tokens))

    async def compact(self, request: Request) -> Response:
        history = history_of(self.api, request)
        return await self.api.handler.generate(request, COMPACTED, history=history)

    async def read(self, request: Request) -> Response:
        name, running = request.path_params["id"], self._running(request)
        if request.query_params.get("stream") == "true":
            if running is None:
                await self._stored(request, name)
                raise ServerError(
                    "invalid_request",
                    "Only a background response that runs, or has just ended, can be streamed; "
                    "leave `stream` out to read what is stored.",
                    "stream",
                )
            return self.api.handler.follow(running, number_of(request, "starting_after"))
        if running is not None:
            return json_reply(running.response)
        return await asyncio.to_thread(json_reply, await self._stored(request, name))

    async def delete(self, request: Request) -> Response:
        name = request.path_params["id"]
        if (running := self._running(request)) is not None:
            await running.cancel()
            self.background.pop((exchange_of(request.scope).owner, name), None)
        await asyncio.to_thread(history_of(self.api, request).delete, "response", name)
        return json_reply(answers.DeletedResponse(id=name))

    async def cancel(self, request: Request) -> Response:
        if (running := self._running(request)) is not None:
            await running.cancel()
            return json_reply(running.response)
        response = await self._stored(request, request.path_params["id"])
        if not response["background"]:
            raise ServerError(
                "invalid_request",
                "Only responses that were created with `background` can be cancelled; to stop another one, "
                "close its connection.",
                "response_id",
            )
        return await asyncio.to_thread(json_reply, response)

    async def input_items(self, request: Request) -> Response:
        history, name = history_of(self.api, request), request.path_params["id"]
        page = await asyncio.to_thread(history.input_page, name, request.query_params)
        return json_reply(page)

    def _running(self, request: Request) -> BackgroundResponse | None:
        return self.background.get((exchange_of(request.scope).owner, request.path_params["id"]))

    async def _stored(self, request: Request, name: str) -> dict[str, Any]:
        """The stored response object, read in a thread: it may be large, and the disk slow."""
        response = await asyncio.to_thread(history_of(self.api, request).response, name)
        # One that is unfinished and no longer runs has failed.
        return (
            response if response["status"] in TERMINAL else response | {"status": "failed", "error": STOPPED}
        )

    async def _run_in_background(
        self, exchange: Exchange, operation: Operation, encoder: SavingEncoder, body: bytes
    ) -> Response:
        await self.api.service.names.find(operation.model)  # refuses an unknown one at once
        own, store, owner = response_id(operation.run), self.api.store, exchange.owner
        answer = Answer(operation, exchange, Presence(), self.api.handler.answers)
        await asyncio.to_thread(store.begins, owner, operation.run.id, body)
        running = BackgroundResponse(answer, encoder, partial(store.ends, owner, operation.run.id))
        self.background.keep(owner, own, running)
        if operation.stream:
            return self.api.handler.follow(running, -1)
        return json_reply(running.response)


def history_of(api: Api, request: Request) -> OwnedHistory:
    """The caller's history; what is decoded of it counts as bytes of the request's body."""
    return api.store.for_owner(exchange_of(request.scope).owner, partial(hold, request.scope))


def named(request: Request) -> str:
    """The id in the address."""
    return str(request.path_params["id"])


def create(history: OwnedHistory, request: Request, data: bytes) -> StoredConversation:
    body = decode_json(data or b"{}", NewConversation)
    conversation = StoredConversation(
        id=f"conv_{uuid4().hex}", created_at=int(time.time()), metadata=body.metadata or {}
    )
    history.save_conversation(conversation, checked(body.items or [], history))
    return conversation


def change(history: OwnedHistory, request: Request, data: bytes) -> StoredConversation:
    return history.change_metadata(named(request), decode_json(data, ChangedConversation).metadata or {})


def delete(history: OwnedHistory, request: Request, data: bytes) -> DeletedConversation:
    history.delete("conversation", named(request))
    return DeletedConversation(id=named(request))


def items(history: OwnedHistory, request: Request, data: bytes) -> dict[str, Any]:
    return history.conversation_page(named(request), request.query_params)


def add_items(history: OwnedHistory, request: Request, data: bytes) -> dict[str, Any]:
    history.head(named(request))  # an unknown conversation is reported before bad items
    added = checked(decode_json(data, NewItems).items, history)
    history.add_items(named(request), added)
    return page_of(added, {"order": "asc", "limit": "100"})


def checked(items: list[Item], history: OwnedHistory) -> list[Item]:
    """The items with ids. Raises `ServerError` for an item that a response could not read later."""
    ItemsReader(history.item).read(items, "items")
    return stored_items(items, uuid4().hex, history.item)
