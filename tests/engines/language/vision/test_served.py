"""Pictures through `pippin serve`: all dialects, with the clients' own libraries, many at once, hostile ones too."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.engines.tiny_vision_models import picture, tiny_vision_model
from tests.running_server import running_server

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
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


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
    message = anthropic.Anthropic(base_url=address, api_key="none").messages.create(
        model="tiny-vision",
        max_tokens=10,
        extra_body={"temperature": 0},
        messages=[
            {
                "role": "user",
                "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}],
            }
        ],
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


def test_hostile_media_get_a_sentence_and_harm_nobody(client: openai.OpenAI, address: str) -> None:
    hostile = [
        uri(b"x"),
        uri(PICTURES[0][:90]),
        uri(b""),
        "data:image/png;base64,%%%",
        "https://example.org/a.png",
    ]
    hostile += ["file:///etc/passwd", "data:text/html,<svg>"]
    for shown in hostile:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, shown)
        assert "messages[0].content[0]" in caught.value.message
    with pytest.raises(openai.BadRequestError):
        ask(client, *[uri(PICTURES[0])] * 65)
    assert ask(client, uri(PICTURES[0]))
    listed = httpx.get(f"{address}/v1/models").json()["data"][0]
    assert listed["capabilities"]["images"] is True


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
