"""mlx_vlm.server: the examples of its document."""

from collections.abc import Iterator

import openai
import pytest

from tests.drop_in.examples import answered, cache_of, events, typed
from tests.running_server import running_server

MODEL = "mlx-community/Qwen2.5-VL-3B-Instruct-8bit"
OTHER = "mlx-community/Qwen2-VL-2B-Instruct-4bit"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mlx_vlm.server --model ... --port 8080`, on loopback."""
    home = tmp_path_factory.mktemp("mlx_vlm")
    cache_of(home, (MODEL, OTHER))
    with running_server(home, "--compat", "mlx-vlm", "--model", MODEL, "--host", "127.0.0.1") as found:
        yield found


def test_models_are_listed(address: str) -> None:
    listed = answered(address, 'curl "http://localhost:8080/models"')
    assert {each["id"] for each in listed["data"]} == {MODEL, OTHER}


def test_a_text_is_asked_about(address: str) -> None:
    example = """
curl -X POST "http://localhost:8080/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen2.5-VL-3B-Instruct-8bit",
    "messages": [
      {
        "role": "user",
        "content": "Hello, how are you"
      }
    ],
    "stream": true,
    "max_tokens": 10
  }'
"""
    chunks = events(typed(address, example))
    assert chunks[-1]["choices"] == [] or chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_responses_take_a_text_and_parts(address: str) -> None:
    example = """
curl -X POST "http://localhost:8080/responses" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen2.5-VL-3B-Instruct-8bit",
    "messages": [],
    "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}]}
    ],
    "max_output_tokens": 10
  }'
"""
    assert answered(address, example)["status"] in ("completed", "incomplete")
    with openai.OpenAI(base_url=address, api_key="any", max_retries=0) as client:
        found = client.responses.create(model=MODEL, input="Hello", max_output_tokens=5)
    assert found.usage is not None
    assert found.usage.output_tokens <= 5


def test_a_request_names_another_model_which_then_takes_the_place_of_the_first(address: str) -> None:
    example = """
curl -X POST "http://localhost:8080/v1/chat/completions" -H "Content-Type: application/json" \\
  -d '{"model": "mlx-community/Qwen2-VL-2B-Instruct-4bit", "max_tokens": 4,
       "messages": [{"role": "user", "content": "Hi"}]}'
"""
    assert answered(address, example)["model"] == OTHER
    health = answered(address, 'curl "http://localhost:8080/health"')
    assert (health["status"], health["loaded_model"], health["loaded_adapter"]) == ("healthy", OTHER, None)
    assert list(health["loaded_models"]) == [OTHER], "one model at a time, as there"


def test_metrics_are_json(address: str) -> None:
    found = answered(address, 'curl "http://localhost:8080/metrics"')
    assert found["latest"]["model"] == OTHER
    assert found["latest"]["generated_tokens"] > 0
    assert found["summary"]["requests_completed"] == len(found["recent"])
    assert found["summary"]["in_flight"] == 0


def test_the_model_is_unloaded(address: str) -> None:
    unloaded = answered(address, 'curl -X POST "http://localhost:8080/unload"')
    assert (unloaded["status"], unloaded["unloaded"]) == (
        "success",
        {"model_name": OTHER, "adapter_name": None},
    )
    assert answered(address, 'curl -X POST "http://localhost:8080/unload"')["status"] == "no_model_loaded"
