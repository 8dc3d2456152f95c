"""The real `ollama` client against `pippin serve`: the demo model answers, and models are copied and deleted."""

import json
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from tests.catalog.folders import write_hub_model
from tests.running_server import running_server

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

OTHER = "org/other"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_hub_model(home / ".cache" / "huggingface" / "hub", OTHER)
    return home


@pytest.fixture(scope="module")
def client(home: Path, demo_model: Path) -> Iterator[ollama.Client]:
    with running_server(home, str(demo_model)) as address, ollama.Client(host=address) as made:
        yield made


@pytest.fixture(scope="module")
def name(client: ollama.Client) -> str:
    return next(each.model for each in client.list().models if each.model and OTHER not in each.model)


def test_a_chat_is_answered_alike_whole_and_streamed(client: ollama.Client, name: str) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    options = {"temperature": 0, "num_predict": 12}
    whole = client.chat(name, asked, options=options)
    streamed = "".join(
        part.message.content or "" for part in client.chat(name, asked, options=options, stream=True)
    )
    assert whole.message.content == streamed
    assert "Paris" in streamed
    assert whole.eval_count
    assert whole.eval_count <= 12


def test_a_schema_is_followed(client: ollama.Client, name: str) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}
    asked = [{"role": "user", "content": "The capital of France, as JSON."}]
    reply = client.chat(name, asked, format=schema, options={"temperature": 0})
    assert json.loads(reply.message.content or "")["city"] in ("Paris", "Oslo")


def test_num_ctx_drops_the_oldest_turns_and_bounds_the_answer(client: ollama.Client, name: str) -> None:
    turns = [
        {"role": "user", "content": "Tell me of the sea. " * 40},
        {"role": "assistant", "content": "It is wide."},
        {"role": "user", "content": "Count from one to a hundred."},
    ]
    reply = client.chat(name, turns, options={"num_ctx": 96, "temperature": 0})
    assert reply.prompt_eval_count is not None
    assert reply.prompt_eval_count < 96
    assert reply.prompt_eval_count + (reply.eval_count or 0) <= 96


def test_a_copy_is_another_name_of_the_model(client: ollama.Client, name: str) -> None:
    client.copy(name, "my-copy")
    asked = [{"role": "user", "content": "Hello"}]
    assert client.chat("my-copy", asked, options={"num_predict": 2}).message.content


def test_a_model_of_the_cache_is_deleted_and_one_of_the_operator_is_not(
    client: ollama.Client, home: Path, name: str
) -> None:
    folder = home / ".cache" / "huggingface" / "hub" / "models--org--other"
    assert any(OTHER in (each.model or "") for each in client.list().models)
    client.delete(OTHER)
    assert not folder.exists()
    with pytest.raises(ollama.ResponseError, match="folder of your own"):
        client.delete(name)
