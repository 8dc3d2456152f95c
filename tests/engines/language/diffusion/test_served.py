"""A diffusion language model through `pippin serve`: all dialects, whole and streamed, refusals, one that leaves."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.engines.language.diffusion.tiny_diffusion import tiny_diffusion_model
from tests.running_server import running_server

NAME = "tiny-diffusion"
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "What is in a name?"}]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    tiny_diffusion_model("nemotron_labs_diffusion", models / NAME)
    with running_server(tmp_path_factory.mktemp("home"), NAME, "--model-dir", str(models)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_every_dialect_has_its_answer_whole_and_streamed(address: str, client: openai.OpenAI) -> None:
    messages: Any = ASKED
    whole = client.chat.completions.create(model=NAME, messages=messages, max_tokens=40)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40
    chunks = list(client.chat.completions.create(model=NAME, messages=messages, max_tokens=40, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text
    assert client.responses.create(model=NAME, input=messages, max_output_tokens=40).output_text == text
    events = client.responses.create(model=NAME, input=messages, max_output_tokens=40, stream=True)
    assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == text
    with anthropic.Anthropic(base_url=address, api_key="none") as claude:
        message = claude.messages.create(model=NAME, messages=messages, max_tokens=40)
        assert message.content[0].to_dict()["text"] == text
        assert message.usage.output_tokens == 40
        with claude.messages.stream(model=NAME, messages=messages, max_tokens=40) as stream:
            assert "".join(stream.text_stream) == text
    raw = client.completions.create(model=NAME, prompt="What is in a name?", max_tokens=8)
    assert raw.choices[0].text


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("logprobs", {"logprobs": True}),
        ("repetition_penalty", {"repetition_penalty": 1.3}),
        ("editing_threshold", {"editing_threshold": 0.5}),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(address: str, param: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": ASKED, **body}, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert "leave it out" in answer.json()["error"]["message"]


def test_settings_of_the_loop_are_taken(client: openai.OpenAI) -> None:
    messages: Any = ASKED
    answer = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=40, extra_body={"block_length": 8, "max_denoising_steps": 2}
    )
    assert answer.choices[0].finish_reason == "length"


def test_a_client_that_leaves_frees_the_model(address: str) -> None:
    body = {"messages": ASKED, "max_tokens": 4000, "stream": True}
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=30) as stream:
        next(stream.iter_lines())
    answer = httpx.post(
        f"{address}/v1/chat/completions", json={"messages": ASKED, "max_tokens": 4}, timeout=30
    )
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert httpx.get(f"{address}/v1/status", timeout=30).json()["num_running"] == 0
