"""LM Studio's REST API, as plug-ins ask for it, over a socket against a worker that plays a script."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pippin import __version__
from tests.api.live_server import MODEL, live_server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        live_server(tmp_path_factory.mktemp("live"), {"rules": []}) as address,
        httpx.Client(base_url=address, timeout=60) as made,
    ):
        yield made


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **fields}
    return client.post("/api/v0/chat/completions", json=body)


def test_models_are_listed_with_kind_state_and_context(client: httpx.Client) -> None:
    chat(client)
    [model] = client.get("/api/v0/models").json()["data"]
    assert model["id"] == MODEL
    assert model["type"] == "vlm"
    assert model["state"] == "loaded"
    assert model["max_context_length"] == model["loaded_context_length"] == 4096
    assert client.get(f"/api/v0/models/{MODEL}").json() == model


def test_chats_completions_and_embeddings_are_answered_as_openais(client: httpx.Client) -> None:
    assert chat(client).json()["choices"][0]["message"]["content"] == "Hello"
    assert chat(client, stream=True).text.endswith("data: [DONE]\n\n")
    prompted = client.post("/api/v0/completions", json={"model": MODEL, "prompt": "Hello", "max_tokens": 4})
    assert prompted.json()["choices"][0]["text"]
    embedded = client.post("/api/v0/embeddings", json={"model": MODEL, "input": "Hello"})
    assert len(embedded.json()["data"][0]["embedding"]) == 16


def frames(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def assert_figures(answer: dict[str, Any], reason: str) -> None:
    """As https://lmstudio.ai/docs/developer/rest/endpoints gives them."""
    stats = answer["stats"]
    assert set(stats) == {"tokens_per_second", "time_to_first_token", "generation_time", "stop_reason"}
    assert stats["stop_reason"] == reason
    assert stats["tokens_per_second"] > 0
    assert 0 <= stats["time_to_first_token"] < 60
    assert stats["tokens_per_second"] * stats["generation_time"] == pytest.approx(
        answer["usage"]["completion_tokens"]
    )
    quant = answer["model_info"].pop("quant")
    assert quant == "unknown"
    assert answer["model_info"] == {"arch": "scripted", "format": "mlx", "context_length": 4096}
    assert answer["runtime"] == {"name": "pippin", "version": __version__, "supported_formats": ["mlx"]}


def test_answers_have_lm_studios_figures(client: httpx.Client) -> None:
    assert_figures(chat(client).json(), "eosFound")
    longer = [{"role": "user", "content": "Hello there"}]
    assert_figures(chat(client, messages=longer, max_tokens=1).json(), "maxPredictedTokensReached")
    assert_figures(chat(client, stop=["lo"]).json(), "stopStringFound")
    for body in ({"messages": [{"role": "user", "content": "Hello there"}]}, {"prompt": "Hello there"}):
        path = "/api/v0/chat/completions" if "messages" in body else "/api/v0/completions"
        assert_figures(client.post(path, json={"model": MODEL, **body}).json(), "eosFound")
        asked = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, **body}
        *others, last = frames(client.post(path, json=asked))
        assert_figures(last, "eosFound")
        assert "stats" in frames(client.post(path, json={"model": MODEL, "stream": True, **body}))[-1]
        assert "stats" not in others[0]
        assert (
            "stats" not in client.post(path.replace("/api/v0", "/v1"), json={"model": MODEL, **body}).json()
        )


def test_what_cannot_be_done_is_refused_in_openais_form(client: httpx.Client) -> None:
    reply = client.post("/api/v0/chat/completions", json={"model": MODEL})
    assert reply.status_code == 400
    assert "messages" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("models", "/api/v0/models"),
        ("models/load", "/v1/models/load"),
        ("models/unload", "/v1/models/unload"),
        ("chat", "/v1/responses"),
    ],
)
def test_the_newer_api_names_what_to_use(client: httpx.Client, path: str, instead: str) -> None:
    reply = client.post(f"/api/v1/{path}", json={"model": MODEL})
    assert reply.status_code == 404
    assert instead in reply.json()["error"]["message"]
