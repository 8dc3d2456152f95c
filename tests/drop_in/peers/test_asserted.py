"""What the peers' own tests of HTTP assert, asked of Pippin under their profiles: mlx-lm's `tests/test_server.py`, and
the clients of Ollama and LM Studio as their documents type them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.running_server import running_server

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
HELLO = {"role": "user", "content": "Hello!"}
SAMPLED = {"max_tokens": 10, "temperature": 0.7, "top_p": 0.85, "repetition_penalty": 1.2}
CALL = {"type": "function", "id": "123", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}


def served(profile: str, tmp_path_factory: pytest.TempPathFactory, *words: str) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp(profile)
    with (
        running_server(home, "scripted", "--compat", profile, *words) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def mlx_lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from served("mlx-lm", tmp_path_factory, "--any-model-name")


@pytest.fixture(scope="module")
def ollama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from served("ollama", tmp_path_factory)


@pytest.fixture(scope="module")
def lm_studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from served("lm-studio", tmp_path_factory, "--identifier", "mine", "--cors")


def posted(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_mlx_lm_completions_repeat_under_a_seed(mlx_lm: httpx.Client) -> None:
    body = {"model": "default_model", "prompt": "Once upon a time", **SAMPLED, "seed": 999}
    body |= {"repetition_context_size": 20, "stop": "stop sequence"}
    one, other = (posted(mlx_lm, "/v1/completions", **body) for _ in range(2))
    assert one["id"]
    assert one["choices"][0]["text"] == other["choices"][0]["text"]
    assert one["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, HELLO],
        [
            {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]},
            {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
        ],
        [
            {"role": "user", "content": "what is 2+3?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "5", "tool_call_id": "123"},
        ],
    ],
    ids=["texts", "fragments", "null beside a call"],
)
def test_mlx_lm_chats(mlx_lm: httpx.Client, messages: list[Any]) -> None:
    answer = posted(mlx_lm, "/v1/chat/completions", model="chat_model", messages=messages, **SAMPLED)
    assert answer["id"]
    assert answer["choices"][0]["message"]["content"] is not None
    assert answer["usage"]["completion_tokens"] > 0


def test_mlx_lm_streams_one_choice_with_a_delta_in_each_chunk(mlx_lm: httpx.Client) -> None:
    body = {"model": "chat_model", "messages": [SYSTEM, HELLO], "max_tokens": 10, "stream": True}
    lines = mlx_lm.post("/v1/chat/completions", json=body).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks
    assert all(len(chunk["choices"]) == 1 and "delta" in chunk["choices"][0] for chunk in chunks)


def test_mlx_lm_lists_its_models(mlx_lm: httpx.Client) -> None:
    listed = mlx_lm.get("/v1/models").json()
    assert listed["object"] == "list"
    assert {"id", "created"} <= listed["data"][0].keys()
    assert listed["data"][0]["object"] == "model"


def test_ollamas_clients_find_the_server_and_its_models(ollama: httpx.Client) -> None:
    assert ollama.head("/").status_code == 200
    assert ollama.get("/api/version").json()["version"]
    [model] = ollama.get("/api/tags").json()["models"]
    assert (model["name"], model["model"]) == ("scripted:latest", "scripted:latest")
    assert posted(ollama, "/api/show", model="scripted")["capabilities"]
    [loaded] = ollama.get("/api/ps").json()["models"]
    assert loaded["name"] == "scripted:latest"


def test_ollamas_chat_and_generate_stream_lines_that_end_with_done(ollama: httpx.Client) -> None:
    for path, asked in (("/api/chat", {"messages": [HELLO]}), ("/api/generate", {"prompt": "Hello!"})):
        streamed = ollama.post(path, json={"model": "scripted:latest", **asked}).text.splitlines()
        assert [json.loads(line)["done"] for line in streamed][-1] is True
        whole = posted(ollama, path, model="scripted", stream=False, options={"num_predict": 5}, **asked)
        assert whole["done"]
        assert whole["eval_count"] > 0


def test_lm_studios_clients_ask_by_the_identifier(lm_studio: httpx.Client) -> None:
    [model] = lm_studio.get("/api/v0/models").json()["data"]
    assert (model["id"], model["object"], model["state"]) == ("mine", "model", "loaded")
    body = {"model": "mine", "messages": [HELLO], "temperature": 0.7, "max_tokens": -1, "stream": False}
    answer = posted(lm_studio, "/api/v0/chat/completions", **body)
    assert answer["stats"]["tokens_per_second"] > 0
    allowed = lm_studio.get("/v1/models", headers={"origin": "http://localhost:3000"}).headers
    assert allowed["access-control-allow-origin"] == "*"
