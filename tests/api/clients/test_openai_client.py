"""The real `openai` client, validating strictly, over a socket against a worker that plays a script."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.api.live_server import MODEL, live_server
from tests.clients import openai_of

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"tool_result": "rain"}, "say": "It rains."},
        {
            "when": {"user": "weather"},
            "say": "I look.",
            "calls": [{"name": "look", "arguments": {"city": "Oslo"}}],
        },
        {"when": {"user": "think"}, "think": "Well.", "say": "Four."},
        {"when": {"user": "json"}, "say": '{"name": "Ann", "age": 7}'},
        {"when": {"user": "slow"}, "say": " ".join(["word"] * 400), "gap": 0.02},
        {"when": {"user": "die"}, "say": "I am going"},
    ]
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), SCRIPT, enable_metrics=True) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


def asks(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def test_a_whole_answer_is_echoed(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asks("Hello there, world"))
    assert answer.choices[0].message.content == "Hello there, world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.system_fingerprint is not None


def test_a_stream_adds_up_to_the_whole_answer(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        **asks("Grüße 😀 to all"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == "Grüße 😀 to all"
    )
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


def test_the_clients_own_stream_helper_understands_tool_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(**asks("the weather?", tools=TOOLS)) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    call = completion.choices[0].message.tool_calls
    assert call is not None
    assert json.loads(call[0].function.arguments) == {"city": "Oslo"}
    assert completion.choices[0].finish_reason == "tool_calls"


def test_a_conversation_with_a_tool_goes_on(client: OpenAI) -> None:
    first = client.chat.completions.create(**asks("the weather?", tools=TOOLS))
    message = first.choices[0].message
    assert message.tool_calls is not None
    assert message.content == "I look."
    messages: list[Any] = [
        {"role": "user", "content": "the weather?"},
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
    ]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == "It rains."


def test_reasoning_stands_beside_the_content(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asks("think"))
    message = answer.choices[0].message.model_dump()
    assert (message["reasoning_content"], message["content"]) == ("Well.", "Four.")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens


def test_parse_gives_the_clients_own_model(client: OpenAI) -> None:
    class Person(BaseModel):
        name: str
        age: int

    answer = client.chat.completions.parse(**asks("json"), response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=7)


def test_logprobs_have_bytes_and_alternatives(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asks("one two"), logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(token.bytes or ()) for token in logprobs.content).decode() == "one two"
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in logprobs.content)


def test_several_choices(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asks("a b"), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    chunks = list(client.chat.completions.create(**asks("a b"), n=3, stream=True))
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1, 2}


def test_a_stop_text_ends_the_answer_and_is_left_out(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asks("one two three"), stop=" th")
    assert answer.choices[0].message.content == "one two"
    short = client.chat.completions.create(**asks("one two three"), max_completion_tokens=1)
    assert short.choices[0].finish_reason == "length"


def test_completions_of_texts(client: OpenAI, address: str) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a b", "c d"], max_tokens=50)
    assert [choice.text for choice in answer.choices] == ["a b", "c d"]
    texts = ["", ""]
    # Not strict: `finish_reason` is null until the end, as at OpenAI, though its types do not say so.
    with OpenAI(base_url=f"{address}/v1", api_key="none") as lenient:
        for chunk in lenient.completions.create(model=MODEL, prompt=["a b", "c d"], stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    assert texts == ["a b", "c d"]


def test_a_harness_can_score_a_prompt(address: str) -> None:
    body = {"model": MODEL, "prompt": "The sky is", "echo": True, "max_tokens": 0, "logprobs": 1}
    [choice] = httpx.post(f"{address}/v1/completions", json=body).json()["choices"]
    assert choice["text"] == "The sky is"
    scores = choice["logprobs"]["token_logprobs"]
    assert scores[0] is None
    assert all(isinstance(score, float) and math.isfinite(score) for score in scores[1:])
    assert choice["logprobs"]["text_offset"][0] == 0


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**asks("x"), temperature=-5)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**asks("word " * 9000))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**asks("x"), stream=True, n=0)


def test_models_are_listed_and_described(client: OpenAI) -> None:
    client.chat.completions.create(**asks("x"))  # which loads the model
    [model] = client.models.list().data
    assert model.id == MODEL
    one = client.models.retrieve(MODEL).model_dump()
    assert (one["context_window"], one["loaded"]) == (4096, True)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/none")


def test_tokens_there_and_back(address: str) -> None:
    with httpx.Client(base_url=address) as http:
        ours = http.post(
            "/tokenize", json={"model": MODEL, "prompt": "one two", "return_token_strs": True}
        ).json()
        assert ours["count"] == len(ours["tokens"]) == len(ours["token_strs"])
        theirs = http.post("/tokenize", json={"content": "one two", "with_pieces": True}).json()
        assert [each["piece"] for each in theirs["tokens"]] == ours["token_strs"]
        back = http.post("/detokenize", json={"tokens": ours["tokens"]}).json()
        assert back["prompt"] == back["content"] == "one two"
        chat = http.post("/tokenize", json=asks("one two")).json()
        assert chat["count"] > ours["count"]
        assert "one two" in http.post("/apply-template", json=asks("one two")).json()["prompt"]
        assert http.post("/tokenize", json={"model": MODEL}).status_code == 400


def test_a_disconnect_stops_the_worker(address: str) -> None:
    def wait_for(running: int) -> None:
        deadline = time.monotonic() + 5
        while (seen := http.get("/v1/status").json()["num_running"]) != running:
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)

    with httpx.Client(base_url=address) as http:
        with http.stream("POST", "/v1/chat/completions", json=asks("slow", stream=True)) as reply:
            lines = reply.iter_lines()
            next(lines)
            wait_for(1)
        wait_for(0)


def test_metrics_speak_both_names(address: str, client: OpenAI) -> None:
    client.chat.completions.create(**asks("count me"))
    text = httpx.get(f"{address}/metrics").text
    for name in (
        "pippin_requests_total",
        "vllm_mlx_inference_requests_total",
        "pippin_time_to_first_token_seconds_bucket",
        "vllm_mlx_inference_ttft_seconds_count",
        "vllm_mlx_scheduler_running_requests",
        "pippin_completion_tokens_total",
        "vllm_mlx_cache_hits",
    ):
        assert f"\n{name}" in text, name


def test_health_answers_at_once_and_in_everybodys_words(address: str) -> None:
    started = time.perf_counter()
    body = httpx.get(f"{address}/health").json()
    assert time.perf_counter() - started < 10  # a load takes longer
    assert body["status"] == "healthy"
    assert body["loaded_model"] == body["model_name"] == MODEL
    assert body["workers"][0]["state"] == "loaded"


def test_unloading_and_loading(address: str) -> None:
    with httpx.Client(base_url=address, timeout=20) as http:
        assert http.post("/v1/models/load", json={"model": MODEL}).json()["state"] == "loaded"
        assert http.post(f"/v1/models/{MODEL}/pin").json()["pinned"] is True
        assert http.post(f"/v1/models/{MODEL}/pin", json={"pinned": False}).json()["pinned"] is False
        assert http.delete("/v1/cache").json()["status"] == "cleared"
        assert http.post("/unload").json()["status"] == "success"
        assert http.post("/unload").json()["status"] == "no_model_loaded"
        assert http.post(f"/v1/models/{MODEL}/load").json()["state"] == "loaded"


def test_settings_are_shown_and_changed_but_never_the_keys(address: str) -> None:
    with httpx.Client(base_url=address) as http:
        current = http.get("/v1/settings").json()["current"]
        assert "api_keys" not in current
        reply = http.patch("/v1/settings", json={"no_such_option": 1})
        assert reply.status_code == 400
        assert "no_such_option" in reply.json()["rejected"]
