"""mlx-openai-server: the examples of its document."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.drop_in.examples import answered, cache_of
from tests.running_server import running_server

CODER = "mlx-community/Qwen3-Coder-Next-4bit"
QUESTION = [{"role": "user", "content": "Hello!"}]
CONFIG = """
server:
  host: "127.0.0.1"
  port: 8000
  log_level: INFO

models:
  - model_path: mlx-community/GLM-4.7-Flash-8bit
    model_type: lm
    served_model_name: glm-4.7-flash
    enable_auto_tool_choice: true
    tool_call_parser: glm4_moe
    reasoning_parser: glm47_flash
    message_converter: glm4_moe
  - model_path: mlx-community/Qwen3-Coder-Next-4bit
    model_type: lm
    served_model_name: qwen
    on_demand: true
    on_demand_idle_timeout: 120
  - model_path: black-forest-labs/FLUX.2-klein-4B
    model_type: image-generation
    served_model_name: flux2-klein-4b
    config_name: flux2-klein-4b
    quantize: 4
    on_demand: true
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mlx-openai-server launch --model-path ...` of one language model."""
    home = tmp_path_factory.mktemp("launch")
    cache_of(home, (CODER, "org/something-else"))
    words = (
        f"--model-path {CODER} --model-type lm --reasoning-parser qwen3_next --tool-call-parser qwen3_coder "
        "--host 127.0.0.1"
    )
    with running_server(home, *words.split(), verb="launch") as found:
        yield found


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mlx-openai-server launch --config config.yaml`."""
    home = tmp_path_factory.mktemp("config")
    cache_of(home, ("mlx-community/GLM-4.7-Flash-8bit", CODER, "org/something-else"))
    (home / "config.yaml").write_text(CONFIG)
    with running_server(
        home, "--config", str(Path(home, "config.yaml")), "--offline", verb="launch"
    ) as found:
        yield found


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="not-needed", max_retries=0)


def test_health_is_ok(launched: str) -> None:
    health = answered(launched, "curl http://localhost:8000/health")
    assert (health["status"], health["model_id"], health["model_status"]) == ("ok", CODER, "initialized")


def test_an_answer_without_a_thought_is_content_whole_and_streamed(launched: str) -> None:
    with client_of(launched) as client:
        whole = client.chat.completions.create(model="local-text-model", messages=QUESTION, max_tokens=8)
        assert whole.choices[0].message.content
        stream = client.chat.completions.create(
            model="local-text-model", messages=QUESTION, max_tokens=8, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_the_one_model_answers_any_name_and_no_other_of_the_disk_is_served(launched: str) -> None:
    with client_of(launched) as client:
        assert [model.id for model in client.models.list()] == [CODER]
        for name in ("local-multimodal", "something-else", "org/something-else"):
            answer = client.chat.completions.create(model=name, messages=QUESTION, max_tokens=2)
            assert answer.model == CODER


def test_all_models_of_the_file_are_listed_and_asked_by_their_served_names(configured: str) -> None:
    with client_of(configured) as client:
        listed = {model.id: model for model in client.models.list()}
        assert set(listed) == {"glm-4.7-flash", "qwen", "flux2-klein-4b"}
        for name in ("glm-4.7-flash", "qwen"):
            assert client.chat.completions.create(model=name, messages=QUESTION, max_tokens=2).model == name
        with pytest.raises(openai.NotFoundError, match="not downloaded yet"):
            client.images.generate(model="flux2-klein-4b", prompt="A cat", size="1024x1024")
        with pytest.raises(openai.NotFoundError, match="no others"):
            client.chat.completions.create(model="org/something-else", messages=QUESTION)


def test_the_queue_is_told(configured: str) -> None:
    assert answered(configured, "curl http://localhost:8000/v1/queue/stats")["status"] == "ok"
