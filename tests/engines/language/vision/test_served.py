"""Pictures through `pippin serve`: all dialects, with the clients' own libraries, many at once, hostile ones too."""

import base64
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.running_server import running_server

Json = dict[str, Any]
Dialect = Callable[..., tuple[str, Json]]
QUESTION = "What is in the picture?"
PICTURES = [picture(20 + 8 * n, 60 - 7 * n, n) for n in range(5)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    tiny_vision_model("qwen3_vl", models / "tiny-vision")
    words = ("tiny-vision", "--model-dir", str(models), "--no-media-fetch")
    with running_server(tmp_path_factory.mktemp("home"), *words) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def uri(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def ask(client: openai.OpenAI, *shown: str, text: str = QUESTION, **settings: Any) -> str:
    content: list[Any] = [{"type": "image_url", "image_url": {"url": each}} for each in shown]
    answer = client.chat.completions.create(
        model="tiny-vision",
        messages=[{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
        temperature=0,
        max_tokens=10,
        **settings,
    )
    return answer.choices[0].message.content or ""


def claiming(side: int) -> bytes:
    """A small file that says of itself that it is a large square."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(1000))
    chunks = [
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
        for part in (header, body)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_decisions_see_pictures(address: str) -> None:
    def decided(shown: bytes, *others: str) -> list[float]:
        asked = {"type": "choice", "criteria": ["a", "b", "c"]}
        body = {
            "state": "Look at <picture>!",
            "questions": {name: {**asked, "instructions": QUESTION + name} for name in (*others, "what")},
            "assets": {"<picture>": {"data_base64": base64.b64encode(shown).decode()}},
        }
        reply = httpx.post(f"{address}/v1/systemone", json=body, timeout=120)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["answers"]["what"]["probabilities"].values())

    seen = decided(PICTURES[0])
    assert decided(PICTURES[0]) == pytest.approx(seen, rel=1e-4)
    assert decided(PICTURES[1]) != pytest.approx(seen, rel=1e-3)
    # Several questions are computed in one pass.
    assert decided(PICTURES[0], *map(str, range(31))) == pytest.approx(seen, rel=1e-3)


def test_all_dialects_see_the_same_picture(client: openai.OpenAI, address: str) -> None:
    expected = ask(client, uri(PICTURES[0]))
    assert expected != ask(client, uri(PICTURES[1]))
    shown: Any = {"type": "input_image", "image_url": uri(PICTURES[0]), "detail": "auto"}
    asked: Any = [{"role": "user", "content": [shown, {"type": "input_text", "text": QUESTION}]}]
    response = client.responses.create(model="tiny-vision", input=asked, temperature=0, max_output_tokens=10)
    assert response.output_text == expected
    source: Any = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(PICTURES[0]).decode(),
    }
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    with anthropic.Anthropic(base_url=address, api_key="none") as other:
        message = other.messages.create(
            model="tiny-vision",
            max_tokens=10,
            extra_body={"temperature": 0},
            messages=[{"role": "user", "content": content}],
        )
    [block] = message.content
    assert block.type == "text"
    assert block.text == expected


def test_many_pictures_and_texts_at_once_are_answered_as_alone(client: openai.OpenAI) -> None:
    asked = [((uri(shown),), QUESTION) for shown in PICTURES]
    asked += [((), f"A text, number {n}.") for n in range(5)]
    asked += [((uri(PICTURES[0]), uri(PICTURES[3])), "Which is larger?")]
    alone = [ask(client, *shown, text=text) for shown, text in asked]
    with ThreadPoolExecutor(11) as pool:
        together = list(pool.map(lambda each: ask(client, *each[0], text=each[1]), asked * 2))
    assert together == alone * 2


def chat(*shown: str) -> tuple[str, Json]:
    content = [{"type": "image_url", "image_url": {"url": each}} for each in shown]
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 4}


def messages(*shown: str) -> tuple[str, Json]:
    return "/v1/messages", {"messages": [{"role": "user", "content": blocks(shown)}], "max_tokens": 4}


def tool_results(*shown: str) -> tuple[str, Json]:
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": blocks(shown)}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    return "/v1/messages", {"messages": turns, "max_tokens": 4}


def responses(*shown: str) -> tuple[str, Json]:
    content = [{"type": "input_image", "image_url": each} for each in shown]
    return "/v1/responses", {"input": [{"role": "user", "content": content}], "max_output_tokens": 16}


def blocks(shown: tuple[str, ...]) -> list[Json]:
    found = []
    for each in shown:
        head, comma, data = each.partition(",")
        inline = {"type": "base64", "media_type": head[5:].removesuffix(";base64"), "data": data}
        found.append({"type": "image", "source": inline if comma else {"type": "url", "url": each}})
    return found


DIALECTS = [chat, messages, responses]
ODD = {
    "grey": picture(24, 24, 1, "PNG", "L"),
    "palette": picture(24, 24, 1, "GIF", "P"),
    "cmyk": picture(24, 24, 1, "JPEG", "CMYK"),
    "clear": picture(24, 24, 1, "WEBP", "RGBA"),
    "bits": picture(24, 24, 1, "BMP", "1"),
}
HOSTILE = {
    "no picture": uri(b"x"),
    "cut": uri(PICTURES[0][:90]),
    "not base64": "data:image/png;base64,%%%",
    "nothing": uri(b""),
    "svg": uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/png"),
    "pdf": uri(b"%PDF-1.7\n1 0 obj"),
    "video": uri(b"\0\0\0\x18ftypmp42" + bytes(40)),
    "bomb": uri(claiming(20_000)),
    "of no size": uri(claiming(0)),
    "far": "https://example.org/a.png",
    "near": "http://169.254.169.254/latest/meta-data",
    "of the machine": "file:///etc/passwd",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_media_get_a_sentence_and_harm_nobody(dialect: Dialect, address: str) -> None:
    with httpx.Client(base_url=address, timeout=500) as wire:
        for name, shown in HOSTILE.items():
            path, body = dialect(shown)
            reply = wire.post(path, json={"model": "tiny-vision", **body})
            assert reply.status_code == 400, (name, reply.text)
            assert len(reply.json()["error"]["message"]) > 20, name
        for number in (65, 300):
            path, body = dialect(*[uri(PICTURES[0])] * number)
            assert wire.post(path, json={"model": "tiny-vision", **body}).status_code == 400
        for name, data in ODD.items():
            path, body = dialect(uri(data))
            reply = wire.post(path, json={"model": "tiny-vision", **body})
            assert reply.status_code == 200, (name, reply.text)
        listed = wire.get("/v1/models").json()["data"][0]
        assert listed["capabilities"]["images"] is True


def test_hostile_media_of_a_tool_end_no_conversation(address: str) -> None:
    with httpx.Client(base_url=address, timeout=500) as wire:
        for name, shown in HOSTILE.items():
            path, body = tool_results(shown, uri(PICTURES[0]))
            reply = wire.post(path, json={"model": "tiny-vision", **body})
            is_base64 = name not in ("not base64", "nothing")
            assert reply.status_code == (200 if is_base64 else 400), (name, reply.text)
        path, body = tool_results(*[uri(PICTURES[0])] * 65)
        assert wire.post(path, json={"model": "tiny-vision", **body}).status_code == 200


def test_pictures_are_counted_over_all_messages(address: str) -> None:
    path, body = chat(*[uri(PICTURES[0])] * 33)
    body["messages"] *= 2
    reply = httpx.post(f"{address}{path}", json={"model": "tiny-vision", **body}, timeout=500)
    assert reply.status_code == 200, "the oldest are left out"
    path, body = chat(*[uri(PICTURES[0])] * 66)
    reply = httpx.post(f"{address}{path}", json={"model": "tiny-vision", **body}, timeout=500)
    assert reply.status_code == 400
    assert "66 media parts" in reply.json()["error"]["message"]


def test_structured_output_and_streams_go_with_pictures(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [7]}}}
    assert ask(client, uri(PICTURES[0]), response_format=form) == "7"
    content: Any = [
        {"type": "image_url", "image_url": {"url": uri(PICTURES[2])}},
        {"type": "text", "text": QUESTION},
    ]
    stream = client.chat.completions.create(
        model="tiny-vision",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=10,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == ask(client, uri(PICTURES[2]))
