"""vllm-mlx: the examples of its document."""

from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from tests.drop_in.examples import answered, cache_of
from tests.running_server import running_server

LLAMA = "mlx-community/Llama-3.2-3B-Instruct-4bit"
E5 = "mlx-community/multilingual-e5-small-mlx"
MINI = "mlx-community/all-MiniLM-L6-v2-4bit"
QUESTION = [{"role": "user", "content": "Hello!"}]
REGISTRY = """
manager:
  memory_budget_gb: 8
  idle_unload_seconds: 900
models:
  - name: small
    path: mlx-community/Llama-3.2-3B-Instruct-4bit
    preload: true
  - name: far
    path: mlx-community/Qwen3-8B-4bit
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`vllm-mlx serve MODEL --embedding-model ... --continuous-batching`."""
    home = tmp_path_factory.mktemp("vllm_mlx")
    cache_of(home, (LLAMA, E5, MINI, "org/private"))
    words = f"{LLAMA} --embedding-model {E5} --continuous-batching --enable-auto-tool-choice --reasoning-parser qwen3"
    with running_server(home, "--compat", "vllm-mlx", *words.split(), "--offline") as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="not-needed", max_retries=0) as made:
        yield made


def test_default_is_the_language_model_beside_an_embedding_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=4)
    assert answer.model == LLAMA
    stream = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=4, stream=True)
    assert [chunk for chunk in stream if chunk.choices][-1].choices[0].finish_reason in ("stop", "length")


def test_embeddings_are_of_the_model_that_the_request_names(client: openai.OpenAI) -> None:
    for model in (E5, MINI):
        answer = client.embeddings.create(model=model, input=["Hello world", "How are you?"])
        assert (len(answer.data), answer.model) == (2, model)
    assert client.embeddings.create(model="default", input="Hello").model == E5
    answer = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=4)
    assert answer.model == LLAMA, "an embedding model that was loaded later is no chat's default"


def test_the_anthropic_sdk_asks_by_any_claude_name(address: str) -> None:
    with anthropic.Anthropic(base_url=address, api_key="not-needed", max_retries=0) as client:
        found = client.messages.create(model="default", max_tokens=4, messages=QUESTION)
        assert found.stop_reason in ("end_turn", "max_tokens")
        found = client.messages.create(model="claude-sonnet-of-tomorrow", max_tokens=4, messages=QUESTION)
        assert found.usage.output_tokens <= 4


def test_only_what_is_served_is_listed_and_answers(client: openai.OpenAI) -> None:
    listed = [model.id for model in client.models.list()]
    assert listed[:2] == [LLAMA, E5]
    assert "org/private" not in listed
    for name in ("org/private", "private", "gpt-4"):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model=name, messages=QUESTION, max_tokens=2)


def test_a_name_of_speech_models_is_known_and_its_download_is_what_is_missing(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Kokoro-82M-bf16"):
        client.audio.speech.create(model="kokoro", voice="af_heart", input="Hello")


def test_the_status_has_the_documented_words(address: str) -> None:
    status = answered(address, "curl http://localhost:8000/v1/status")
    assert (status["status"], status["model"]) == ("running", LLAMA)
    assert {"type", "entries", "hit_rate", "memory_mb"} <= status["cache"].keys()
    assert status["embedding"]["model"] in (E5, MINI)


def test_prefixes_are_cleared(address: str) -> None:
    cleared = answered(address, "curl -X DELETE http://localhost:8000/v1/cache/prefix")
    assert (cleared["status"], cleared["rewarm_scheduled"]) == ("success", False)


def test_lazy_models_of_a_registry_are_known_before_they_are_here(tmp_path: Path) -> None:
    cache_of(tmp_path, (LLAMA,))
    (tmp_path / "models.yaml").write_text(REGISTRY)
    words = ("--compat", "vllm-mlx", "--models-config", str(tmp_path / "models.yaml"), "--offline")
    with (
        running_server(tmp_path, *words) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="not-needed", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["small", "far"]
        assert (
            client.chat.completions.create(model="default", messages=QUESTION, max_tokens=2).model == "small"
        )
        with pytest.raises(openai.NotFoundError, match="not downloaded yet"):
            client.chat.completions.create(model="far", messages=QUESTION)
