"""The largest and the oddest requests that the server takes, as the bytes that go over the wire."""

import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

MIB: Final = 1 << 20
BODY: Final = 60 * MIB  # of 64 that are allowed
UPLOAD: Final = 240 * MIB  # of 256
MODEL: Final = "alpha"
BOUNDARY: Final = "boundary"

Requests = list[bytes]
"""Sent at the same time, each over a connection of its own."""


class Case(NamedTuple):
    name: str
    requests: Callable[[], Requests]


def request(path: str, body: Any = None, *, method: str = "POST", media: str = "application/json") -> bytes:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: {media}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def chunked(path: str, body: bytes, size: int) -> bytes:
    """The body in pieces of so many bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + coded


def form(path: str, files: dict[str, list[bytes]], fields: dict[str, str]) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for name, contents in files.items():
        for content in contents:
            head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"; filename="x"\r\n\r\n'
            parts += [head.encode(), content, b"\r\n"]
    body = b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    return request(path, body, media=f"multipart/form-data; boundary={BOUNDARY}")


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def chat(content: Any = "Hi", **fields: Any) -> bytes:
    return request(
        "/v1/chat/completions", {"model": MODEL, "max_tokens": 5, "messages": user(content)} | fields
    )


def words(size: int) -> str:
    return "lorem ipsum dolor sit amet " * (size // 27)


def letters(size: int) -> str:
    """A text that the scripted model has read at once."""
    return "x" * size


def picture(size: int) -> str:
    return base64.b64encode(os.urandom(size * 3 // 4)).decode()


def image_part(size: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture(size)}"}}


def tool(number: int) -> dict[str, Any]:
    properties = {f"p{place}": {"type": "string"} for place in range(8)}
    return {
        "type": "function",
        "function": {"name": f"f{number}", "parameters": {"type": "object", "properties": properties}},
    }


def bodies() -> Iterator[Case]:
    message = {"model": MODEL, "max_tokens": 5}
    yield Case("chat: one text", lambda: [chat(letters(BODY))])
    yield Case("chat: 16,000 messages", lambda: [chat(messages=user(letters(3000)) * 16_000)])
    yield Case("chat: 490,000 lists", lambda: [chat(metadata={"a": [[]] * 490_000})])
    yield Case("chat: 490,000 lists nobody knows", lambda: [chat(unknown=[[]] * 490_000)])
    yield Case("chat: numbers to the limit", lambda: [chat(unknown=[1] * (BODY // 3))])
    yield Case("chat: texts to the limit", lambda: [chat(unknown=["a"] * (BODY // 5))])
    yield Case("chat: brackets to the limit", lambda: [chat(unknown=[[]] * (BODY // 4))])
    yield Case("chat: a picture", lambda: [chat([image_part(BODY)])])
    yield Case("chat: ten pictures", lambda: [chat([image_part(BODY // 10)] * 10)])
    yield Case("chat: 5,000 tools", lambda: [chat(tools=[tool(number) for number in range(5000)])])
    yield Case(
        "chat: a schema of 30,000 properties",
        lambda: [
            chat(
                response_format={
                    "type": "json_schema",
                    "json_schema": {
                        "name": "s",
                        "schema": {
                            "type": "object",
                            "properties": {f"p{number}": {"type": "string"} for number in range(30_000)},
                        },
                    },
                }
            )
        ],
    )
    yield Case(
        "messages: one text", lambda: [request("/v1/messages", message | {"messages": user(letters(BODY))})]
    )
    yield Case(
        "messages: a picture",
        lambda: [
            request(
                "/v1/messages",
                message
                | {
                    "messages": user(
                        [
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": picture(BODY),
                                },
                            }
                        ]
                    )
                },
            )
        ],
    )
    yield Case(
        "responses: one text, stored",
        lambda: [request("/v1/responses", {"model": MODEL, "input": letters(BODY)})],
    )
    yield Case(
        "responses: the same, streamed",
        lambda: [request("/v1/responses", {"model": MODEL, "input": letters(BODY), "stream": True})],
    )
    yield Case(
        "completions: 990,000 token ids",
        lambda: [request("/v1/completions", {"model": MODEL, "prompt": [1] * 990_000})],
    )
    yield Case("eight bodies of 30 MiB at once", lambda: [chat(letters(BODY // 2))] * 8)


def other_kinds() -> Iterator[Case]:
    embed = {"model": MODEL, "input": ["a few words"] * 2048}
    query = {"model": MODEL, "query": "words"}
    yield Case("embeddings: 2,048 of 4,096 numbers", lambda: [request("/v1/embeddings", embed)])
    yield Case(
        "embeddings: the same in base64",
        lambda: [request("/v1/embeddings", embed | {"encoding_format": "base64"})],
    )
    yield Case(
        "embeddings: one text", lambda: [request("/v1/embeddings", {"model": MODEL, "input": letters(BODY)})]
    )
    yield Case(
        "rerank: 4,096 documents",
        lambda: [request("/v1/rerank", query | {"documents": [words(14_000)] * 4096})],
    )
    yield Case("tokenize: 3 MiB", lambda: [request("/tokenize", {"model": MODEL, "prompt": words(3 * MIB)})])
    yield Case("tokenize: 60 MiB", lambda: [request("/tokenize", {"model": MODEL, "prompt": words(BODY)})])
    yield Case(
        "tokenize: 3 MiB with pieces",
        lambda: [request("/tokenize", {"model": MODEL, "prompt": words(3 * MIB), "with_pieces": True})],
    )
    yield Case(
        "detokenize: a million ids",
        lambda: [request("/detokenize", {"model": MODEL, "tokens": [1] * 1_000_000})],
    )
    yield Case(
        "transcription: 240 MiB",
        lambda: [form("/v1/audio/transcriptions", {"file": [os.urandom(UPLOAD)]}, {"model": MODEL})],
    )
    yield Case(
        "image edit: 16 pictures of 15 MiB",
        lambda: [
            form(
                "/v1/images/edits",
                {"image": [os.urandom(UPLOAD // 16)] * 16},
                {"model": MODEL, "prompt": "x"},
            )
        ],
    )
    yield Case(
        "image edit: JSON",
        lambda: [
            request(
                "/v1/images/edits",
                {"model": MODEL, "prompt": "x", "image": f"data:image/png;base64,{picture(BODY)}"},
            )
        ],
    )
    yield Case(
        "speech: reference sound",
        lambda: [
            request(
                "/v1/audio/speech",
                {"model": MODEL, "input": "x", "ref_audio": f"data:audio/wav;base64,{picture(BODY)}"},
            )
        ],
    )
    yield Case(
        "pictures: ten of 4,096 by 4,096",
        lambda: [
            request("/v1/images/generations", {"model": MODEL, "prompt": "x", "n": 10, "size": "4096x4096"})
        ],
    )


def odd_wires() -> Iterator[Case]:
    almost = (b"\r\n--" + BOUNDARY.encode()[:-1]) * (BODY // 12)
    yield Case(
        "a form of what is almost its boundary",
        lambda: [form("/v1/audio/transcriptions", {"file": [almost]}, {"model": MODEL})],
    )
    yield Case(
        "a form of line ends",
        lambda: [form("/v1/audio/transcriptions", {"file": [b"\r\n" * (BODY // 2)]}, {"model": MODEL})],
    )
    yield Case(
        "a body in chunks of one byte",
        lambda: [chunked("/v1/chat/completions", chat(words(MIB)).partition(b"\r\n\r\n")[2], 1)],
    )
    once = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    yield Case("10,000 requests in one write", lambda: [once * 10_000])
    yield Case("300 requests at once", lambda: [chat(words(300))] * 300)
    rubbish = random.Random(1)
    yield Case(
        "100 bodies of rubbish",
        lambda: [request("/v1/chat/completions", rubbish.randbytes(100_000)) for _ in range(100)],
    )


def answers() -> Iterator[Case]:
    verbose = {"logprobs": True, "top_logprobs": 20, "max_tokens": 8000}
    yield Case(
        "2,000 tokens in four choices with 20 alternatives each",
        lambda: [chat(words(12_000), n=4, **verbose)],
    )
    yield Case("the same, streamed", lambda: [chat(words(12_000), n=4, stream=True, **verbose)])
    names = [f"no-such-model-{number}" for number in range(200)]
    yield Case("200 names of models that there are not", lambda: [chat(model=name) for name in names])
    yield Case("/metrics", lambda: [request("/metrics", method="GET")])
    yield Case("/openapi.json", lambda: [request("/openapi.json", method="GET")])
    yield Case("/v1/models, 100 times", lambda: [request("/v1/models", method="GET")] * 100)


def changes() -> Iterator[Case]:
    for verb in ("unload", "load") * 3:
        yield Case(f"a model is to {verb}", lambda verb=verb: [request(f"/v1/models/{MODEL}/{verb}")])  # type: ignore[misc]


def cases() -> list[Case]:
    return [*answers(), *bodies(), *other_kinds(), *odd_wires(), *changes()]
