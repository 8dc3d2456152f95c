"""The same questions through the other APIs: Ollama's, LM Studio's, batches, WebSockets and MCP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tests.chaos.clients import SECONDS, Broken, Refused, refusal, user, whole

ENDED: Final = ("completed", "failed", "expired", "cancelled")
RESPONSE_ENDS: Final = ("response.completed", "response.failed", "response.incomplete")
NO_ROOM: Final = 1013
"""The code with which a server closes a connection that it has no room for."""


async def ollama_chat(http: httpx.AsyncClient, model: str, words: str) -> str:
    body = {"model": model, "messages": user(words), "stream": False, "options": {"num_ctx": 60_000}}
    return str((await whole(http, "/api/chat", body))["message"]["content"])


async def ollama_stream(http: httpx.AsyncClient, model: str, words: str) -> str:
    text, ended = "", False
    async with http.stream("POST", "/api/generate", json={"model": model, "prompt": words}) as reply:
        if reply.status_code != 200:
            await reply.aread()
            raise refusal(reply)
        async for line in reply.aiter_lines():
            event = json.loads(line)
            if "error" in event:
                raise Refused(500, event["error"])
            text += event["response"]
            ended = event["done"]
    if not ended:
        raise Broken("the stream ended without `done`")
    return text


async def lm_studio(http: httpx.AsyncClient, model: str, words: str) -> str:
    answer = await whole(http, "/api/v0/chat/completions", {"model": model, "messages": user(words)})
    return str(answer["choices"][0]["message"]["content"])


async def batch(http: httpx.AsyncClient, model: str, words: str) -> str:
    """As the second of two lines of a batch, which goes on after a restart of the server."""
    lines = [
        {
            "custom_id": text,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": user(text)},
        }
        for text in ("the first line", words)
    ]
    form = {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)))}
    sent = await http.post("/v1/files", data={"purpose": "batch"}, files=form)
    if sent.status_code != 200:
        raise refusal(sent)
    order = {
        "input_file_id": sent.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    begun = await whole(http, "/v1/batches", order)
    ended = await _ended(http, f"/v1/batches/{begun['id']}")
    if ended["status"] == "expired":
        raise Refused(408, "the clock jumped beyond the end of the batch")
    if ended["error_file_id"]:
        failed = json.loads(
            (await http.get(f"/v1/files/{ended['error_file_id']}/content")).text.splitlines()[0]
        )
        error = failed["response"]
        raise Refused(error["status_code"], error["body"]["error"]["message"])
    if ended["status"] != "completed":
        raise Broken(f"the batch is {ended['status']}")
    reply = await http.get(f"/v1/files/{ended['output_file_id']}/content")
    if reply.status_code != 200:
        raise refusal(reply)
    answers = {
        line["custom_id"]: line["response"]["body"] for line in map(json.loads, reply.text.splitlines())
    }
    for file in (order["input_file_id"], ended["output_file_id"]):
        await http.delete(f"/v1/files/{file}")
    if list(answers) != ["the first line", words]:
        raise Broken(f"the batch answered {list(answers)}")
    return str(answers[words]["choices"][0]["message"]["content"])


async def _ended(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """A batch once it has ended. While there is no server it is asked for again: it goes on with the next one."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                reply = await http.get(path)
            except httpx.TransportError:
                await asyncio.sleep(0.2)
                continue
            if reply.status_code != 200:
                raise refusal(reply)
            found: dict[str, Any] = reply.json()
            if found["status"] in ENDED:
                return found
            await asyncio.sleep(0.2)


class Talk:
    """A WebSocket of a server, and the events on it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, type: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": type, **fields}))

    async def until(self, *types: str) -> dict[str, Any]:
        """The next event of one of these types. Raises `Refused` for an error."""
        while True:
            event: dict[str, Any] = json.loads(await self._socket.recv())
            if event["type"] == "error":
                raise Refused(event.get("status", 500), event["error"]["message"])
            if event["type"] in types:
                return event


@asynccontextmanager
async def talking(http: httpx.AsyncClient, path: str) -> AsyncIterator[Talk]:
    """A connection. Raises what a request over HTTP raises."""
    address = str(http.base_url).rstrip("/").replace("http", "ws", 1) + path
    try:
        async with asyncio.timeout(SECONDS), connect(address, open_timeout=SECONDS) as socket:
            yield Talk(socket)
    except InvalidStatus as error:
        raise refusal(
            httpx.Response(error.response.status_code, content=error.response.body or b"")
        ) from None
    except ConnectionClosed as error:
        if error.rcvd is not None and error.rcvd.code == NO_ROOM:
            raise Refused(503, error.rcvd.reason) from None
        raise Broken(f"the connection ended: {error}") from None
    except InvalidHandshake as error:
        raise Broken(f"no connection: {error}") from None
    except TimeoutError:
        raise httpx.ReadTimeout("no answer") from None


async def response_socket(http: httpx.AsyncClient, model: str, words: str) -> str:
    """Two turns of Responses on one connection, of which the second goes on with the first."""
    async with talking(http, "/v1/responses") as talk:
        order = {"model": model, "store": False}
        await talk.send("response.create", **order, input="before")
        before = _completed(await talk.until(*RESPONSE_ENDS))
        await talk.send("response.create", **order, input=words, previous_response_id=before["id"])
        return str(_completed(await talk.until(*RESPONSE_ENDS))["output"][0]["content"][0]["text"])


def _completed(event: dict[str, Any]) -> dict[str, Any]:
    """The response of an event. Raises `Refused` for one that failed."""
    response: dict[str, Any] = event["response"]
    error = response.get("error")
    if error:
        excused = any(words in error["message"] for words in ("shutting down", "The server is busy"))
        raise Refused(503 if excused else 500, error["message"])
    return response


NEIGHBOURS: Final = (
    ollama_chat,
    ollama_stream,
    lm_studio,
    batch,
    response_socket,
)
