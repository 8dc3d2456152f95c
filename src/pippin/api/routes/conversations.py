"""`/v1/conversations`: stored lists of items that responses continue and extend."""

import asyncio
import time
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.responses.answer import ItemPage, stored_items
from pippin.api.dialects.responses.dialect import Metadata
from pippin.api.dialects.responses.items import Item, ItemsReader
from pippin.api.dialects.shared.fields import decode_json
from pippin.api.http.body import read_json_body
from pippin.api.routes.responses import history_of
from pippin.api.routing import Api, both, json_reply
from pippin.api.stored_responses.response_store import (
    Change,
    OwnedHistory,
    StoredConversation,
    not_found,
    page_of,
)

MOST_ITEMS: Final = 20
"""Items that one call may add; OpenAI's limit."""

Items = Annotated[list[dict[str, Any]], Meta(max_length=MOST_ITEMS)]


class NewConversation(Struct, kw_only=True):
    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(Struct, kw_only=True):
    metadata: Metadata | None = None


class ConversationAnswer(Struct, kw_only=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class DeletedConversation(Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class NewItems(Struct, kw_only=True):
    items: Items = field(default_factory=list)


def routes(api: Api) -> list[BaseRoute]:
    conversations = Conversations(api)
    return [
        *both(
            "/conversations",
            conversations.create,
            "POST",
            body=NewConversation,
            answer=ConversationAnswer,
            optional=True,
        ),
        *both("/conversations/{id}", conversations.read, "GET", answer=ConversationAnswer),
        *both(
            "/conversations/{id}",
            conversations.change,
            "POST",
            body=ChangedConversation,
            answer=ConversationAnswer,
        ),
        *both("/conversations/{id}", conversations.delete, "DELETE", answer=DeletedConversation),
        *both("/conversations/{id}/items", conversations.items, "GET", answer=ItemPage),
        *both("/conversations/{id}/items", conversations.add_items, "POST", body=NewItems, answer=ItemPage),
        *both("/conversations/{id}/items/{item}", conversations.item, "GET"),
        *both(
            "/conversations/{id}/items/{item}", conversations.delete_item, "DELETE", answer=ConversationAnswer
        ),
    ]


class Conversations:
    """The endpoints of conversations.

    Stored items are read and written in threads: they may be large, and the disk may be slow.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, request: Request) -> Response:
        return await asyncio.to_thread(self._create, request, await self._body(request))

    async def read(self, request: Request) -> Response:
        history, name = history_of(self._api, request), request.path_params["id"]
        return await asyncio.to_thread(lambda: json_reply(drawn(history.conversation_head(name))))

    async def change(self, request: Request) -> Response:
        return await asyncio.to_thread(self._change, request, await self._body(request))

    async def delete(self, request: Request) -> Response:
        name = request.path_params["id"]
        await asyncio.to_thread(history_of(self._api, request).delete_conversation, name)
        return json_reply(DeletedConversation(id=name))

    async def items(self, request: Request) -> Response:
        return await asyncio.to_thread(
            lambda: json_reply(page_of(self._find(request).items, request.query_params))
        )

    async def add_items(self, request: Request) -> Response:
        return await asyncio.to_thread(self._add, request, await self._body(request))

    async def item(self, request: Request) -> Response:
        return await asyncio.to_thread(self._item, request)

    async def delete_item(self, request: Request) -> Response:
        return await asyncio.to_thread(self._delete_item, request)

    def _create(self, request: Request, data: bytes) -> Response:
        body = decode_json(data or b"{}", NewConversation)
        history = history_of(self._api, request)
        conversation = StoredConversation(
            id=f"conv_{uuid4().hex}",
            created_at=int(time.time()),
            metadata=body.metadata or {},
            items=checked(body.items or [], history),
        )
        history.save_conversation(conversation)
        return json_reply(drawn(conversation))

    def _change(self, request: Request, data: bytes) -> Response:
        metadata = decode_json(data, ChangedConversation).metadata or {}

        def change(conversation: StoredConversation) -> None:
            conversation.metadata = metadata

        return json_reply(drawn(self._changed(request, change)))

    def _add(self, request: Request, data: bytes) -> Response:
        self._find(request)  # an unknown conversation is reported before bad items
        added = checked(decode_json(data, NewItems).items, history_of(self._api, request))

        def add(conversation: StoredConversation) -> None:
            conversation.items += added

        self._changed(request, add)
        return json_reply(page_of(added, {"order": "asc", "limit": "100"}))

    def _item(self, request: Request) -> Response:
        name = request.path_params["item"]
        for item in self._find(request).items:
            if item["id"] == name:
                return json_reply(item)
        raise not_found("item", name)

    def _delete_item(self, request: Request) -> Response:
        name = request.path_params["item"]

        def delete(conversation: StoredConversation) -> None:
            kept = [item for item in conversation.items if item["id"] != name]
            if len(kept) == len(conversation.items):
                raise not_found("item", name)
            conversation.items = kept

        return json_reply(drawn(self._changed(request, delete)))

    def _changed(self, request: Request, change: Change) -> StoredConversation:
        return history_of(self._api, request).change_conversation(request.path_params["id"], change)

    def _find(self, request: Request) -> StoredConversation:
        return history_of(self._api, request).stored_conversation(request.path_params["id"])

    async def _body(self, request: Request) -> bytes:
        options = self._api.options
        return await read_json_body(request, options.max_body_mb, options.body_timeout)


def checked(items: list[Item], history: OwnedHistory) -> list[Item]:
    """The items with ids. Raises `ServerError` for an item that a response could not read later."""
    ItemsReader(history.item).read(items, "items")
    return stored_items(items, uuid4().hex, history.item)


def drawn(conversation: StoredConversation) -> ConversationAnswer:
    return ConversationAnswer(
        id=conversation.id, created_at=conversation.created_at, metadata=conversation.metadata
    )
