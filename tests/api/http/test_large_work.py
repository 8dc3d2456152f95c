"""What is large is read, drawn and stored beside the event loop, whichever route it is for."""

import asyncio
import base64
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.api.dialects.chat import dialect as chat_encoder
from pippin.api.dialects.completions import dialect as completions_encoder
from pippin.api.dialects.shared import media as media_source
from pippin.api.dialects.shared.fields import names_of
from pippin.api.dialects.shared.media import decoded_base64
from pippin.api.http.body import LARGE, LargeWork
from pippin.api.kinds.embeddings import EmbeddingReply, EmbeddingRequest, draw
from pippin.api.sqlite import SQLite
from pippin.api.stored_responses.response_store import ResponseStore
from pippin.core import decoding
from pippin.core.decoding import known
from pippin.core.events import (
    Accepted,
    Embedded,
    Event,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Token,
    Tokenized,
    TopToken,
)
from pippin.core.models import ModelInfo
from tests.api.fakes import MODEL, FakeService, application, client_of
from tests.api.test_kinds_runs import Played
from tests.security.test_nested_numbers import GOOD, ROUTES

MANAGED = {
    path for path in ROUTES if "/load" in path or "/unload" in path or "/pin" in path or "/search" in path
}
"""Take no large body."""


def on_the_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


class Watch:
    """Notes the calls of a function that read or give much, by whether they held up the event loop."""

    def __init__(self, inner: Callable[..., Any], size: Callable[[Any, Any], int]) -> None:
        self._inner, self._size = inner, size
        self.on_the_loop = self.beside = 0

    def __call__(self, given: Any, **named: Any) -> Any:
        result = None
        try:
            result = self._inner(given, **named)
        finally:
            if self._size(given, result) > LARGE:
                self.on_the_loop += on_the_loop()
                self.beside += not on_the_loop()
        return result


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch(msgspec.json.decode, lambda given, _: len(given))
    monkeypatch.setattr(msgspec.json, "decode", watch)
    # Bodies are read by decoders that are kept: here each reads by the function that is watched.
    monkeypatch.setattr(
        decoding, "json_decoder", lambda body: SimpleNamespace(decode=partial(watch, type=known(body)))
    )
    return watch


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch(msgspec.json.encode, lambda _, result: len(result or b""))
    monkeypatch.setattr(msgspec.json, "encode", watch)
    for encoder in (chat_encoder, completions_encoder):
        monkeypatch.setattr(encoder, "_encode", watch)
    return watch


def post(service: FakeService, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    content = msgspec.json.Encoder().encode(body)

    async def main() -> httpx.Response:
        async with client_of(application(service, **options)) as client:
            headers = {"content-type": "application/json"}
            return await client.post(path.replace("{id:path}", "x"), content=content, headers=headers)

    return asyncio.run(main())


def test_small_work_is_done_here_and_large_work_elsewhere_one_at_a_time() -> None:
    running = most = 0

    def work() -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return on_the_loop()

    async def main() -> None:
        large = LargeWork()
        assert await large.do(LARGE, work)
        assert await asyncio.gather(*(large.do(LARGE + 1, work) for _ in range(5))) == [False] * 5

    asyncio.run(main())
    assert most == 1


@pytest.mark.parametrize("path", sorted(set(ROUTES) - MANAGED))
def test_a_large_body_is_read_beside_the_event_loop(path: str, reading: Watch) -> None:
    good = {name: value for name, value in GOOD.items() if name in names_of(ROUTES[path])}
    reply = post(FakeService(), path, good | {"nobody_knows": "x" * 3 * LARGE})
    assert reply.status_code < 500 or reply.status_code == 501
    assert reading.beside or reply.status_code == 404
    assert not reading.on_the_loop


@pytest.mark.parametrize("path", sorted(MANAGED))
def test_management_takes_no_large_body(path: str) -> None:
    assert post(FakeService(), path, {"model": "x" * 2 * LARGE}).status_code == 413 or "{id" in path


def chosen(tokens: int) -> list[Event]:
    token = Token(1, b"a", -0.5, (TopToken(2, b"b", -1.0),) * 5)
    text = [
        PartStarted(0, 0, "text"),
        PartDelta(0, 0, "a" * tokens, (token,) * tokens, completed=tokens),
        PartEnded(0, 0),
    ]
    return [Accepted(1), *text, Finished(0, "stop")]


@pytest.mark.parametrize(
    ("service", "path", "body"),
    [
        (
            FakeService(chosen(2000)),
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 5},
        ),
        (FakeService(chosen(4000)), "/v1/completions", {"prompt": "Hi", "logprobs": 5}),
        (Played([Accepted(0), Embedded(b"\0" * (1 << 20), 4096, 1)]), "/v1/embeddings", {"input": "Hi"}),
        (Played([Accepted(0), Tokenized(tuple(range(100_000)))]), "/tokenize", {"prompt": "Hi"}),
        (
            Played([Accepted(0), Tokenized(tuple(range(9000)), (b"piece",) * 9000)]),
            "/tokenize",
            {"prompt": "Hi", "with_pieces": True},
        ),
    ],
    ids=["chat", "completions", "embeddings", "tokens", "pieces"],
)
def test_a_large_answer_is_drawn_beside_the_event_loop(
    service: FakeService, path: str, body: dict[str, Any], drawing: Watch
) -> None:
    reply = post(service, path, {"model": MODEL.id} | body)
    assert reply.status_code == 200, reply.text[:500]
    assert len(reply.content) > LARGE
    assert not drawing.on_the_loop
    assert drawing.beside or path == "/v1/embeddings"  # which is drawn in small pieces


def test_vectors_drawn_one_by_one_are_what_the_document_says() -> None:
    vectors = b"\x00\x00\x80\x3f\x00\x00\x00\xc0" * 3
    drawn = draw(EmbeddingRequest(input="x"), "m", Embedded(vectors, 2, 7))
    reply = msgspec.json.decode(drawn, type=EmbeddingReply)
    assert [item.index for item in reply.data] == [0, 1, 2]
    assert [item.embedding for item in reply.data] == [[1.0, -2.0]] * 3
    assert (reply.model, reply.usage.prompt_tokens, reply.object) == ("m", 7, "list")


PICTURE = "data:image/png;base64," + base64.b64encode(b"x" * 3 * LARGE).decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}
                ]
            },
        ),
        ("/v1/images/edits", {"prompt": "x", "image": PICTURE}),
        ("/v1/audio/speech", {"input": "x", "ref_audio": PICTURE}),
    ],
)
def test_media_in_a_body_are_decoded_beside_the_event_loop(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(base64.b64decode, lambda given, _: len(given))
    monkeypatch.setattr(base64, "b64decode", watch)
    post(FakeService(), path, {"model": MODEL.id} | body)
    assert watch.beside
    assert not watch.on_the_loop


def sliced(text: str) -> bytes | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(media_source, "SLICE", 5)
        try:
            return decoded_base64(text)
        except ValueError:
            return None


@given(st.binary(max_size=30), st.data())
def test_base64_in_slices_is_base64(data: bytes, places: st.DataObject) -> None:
    text = base64.b64encode(data).decode()
    place = places.draw(st.integers(0, len(text)))
    assert sliced(text[:place] + " \n" + text[place:]) == data


@given(st.text("AQgw/+= \n", max_size=40))
def test_what_is_no_base64_is_none_in_slices(text: str) -> None:
    try:
        whole = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        assert sliced(text) is None
    else:
        assert sliced(text) in (None, whole)  # padding beyond need is refused


@pytest.fixture
def store_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was asked of the store; asking on the event loop fails."""
    asked: list[str] = []

    def guarded(owner: type, name: str) -> Callable[..., Any]:
        inner = getattr(owner, name)

        def call(*given: Any) -> Any:
            assert not on_the_loop(), f"the store's {name} holds up the event loop"
            asked.append(name)
            return inner(*given)

        return call

    for owner, name in ((ResponseStore, "put"), (ResponseStore, "find"), (SQLite, "transaction")):
        monkeypatch.setattr(owner, name, guarded(owner, name))
    return asked


def test_the_store_is_asked_beside_the_event_loop(store_beside_the_loop: list[str]) -> None:
    async def main() -> None:
        async with client_of(application(FakeService())) as client:

            async def create(**fields: Any) -> Any:
                reply = await client.post("/v1/responses", json={"model": MODEL.id, "input": "Hi"} | fields)
                assert reply.status_code == 200, reply.text
                return reply

            first = (await create()).json()["id"]
            second = (await create(previous_response_id=first, background=True)).json()["id"]
            await create(previous_response_id=first, stream=True)
            conversation = (await client.post("/v1/conversations", json={})).json()["id"]
            await create(conversation=conversation)
            items = f"/v1/conversations/{conversation}/items"
            await client.post(items, json={"items": [{"role": "user", "content": "x"}]})
            found = (await client.get(items)).json()["data"]
            assert len(found) == 3
            for path in (f"{items}/{found[0]['id']}", f"/v1/conversations/{conversation}"):
                assert (await client.get(path)).status_code == 200
                assert (await client.delete(path)).status_code == 200
            for name in (second, first):
                for path in (f"/v1/responses/{name}", f"/v1/responses/{name}/input_items"):
                    assert (await client.get(path)).status_code == 200
                assert (await client.delete(f"/v1/responses/{name}")).status_code == 200

    asyncio.run(main())
    assert set(store_beside_the_loop) >= {"put", "find", "transaction"}


class OnDisk(FakeService):
    """Whose models are looked for on a disk that is slow."""

    started = False

    def model(self, name: str) -> ModelInfo:
        assert self.started or not on_the_loop()
        return MODEL

    def models(self) -> list[ModelInfo]:
        assert not on_the_loop()
        return [MODEL]

    async def start(self, *given: Any, **named: Any) -> Any:
        self.started = True  # the fake's own start looks too
        return await super().start(*given, **named)


@pytest.mark.parametrize("path", sorted(set(ROUTES) - MANAGED - {"/v1/mcp/execute"}))
def test_models_are_looked_for_beside_the_event_loop(path: str) -> None:
    good = {name: value for name, value in GOOD.items() if name in names_of(ROUTES[path])}
    assert post(OnDisk(), path, good | {"model": "default"}).status_code < 500


def test_models_are_listed_beside_the_event_loop() -> None:
    async def main() -> list[int]:
        async with client_of(application(OnDisk())) as client:
            return [(await client.get(path)).status_code for path in ("/v1/models", "/v1/models/default")]

    assert asyncio.run(main()) == [200, 200]
