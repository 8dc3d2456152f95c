"""MLX Server: the examples of its document."""

from collections.abc import Iterator

import openai
import pytest

from tests.drop_in.examples import answered, cache_of, typed
from tests.running_server import running_server

GEMMA = "mlx-community/gemma-3-4b-it-4bit"
ABSENT = "mlx-community/gemma-3n-E4B-it-4bit"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`./run.sh gemma`: the model loads with its first request."""
    home = tmp_path_factory.mktemp("mlx_server")
    cache_of(home, (GEMMA,))
    with running_server(home, "--compat", "mlx-server", "gemma", "--offline", ready="serves at") as found:
        yield found


def test_health_is_ok(address: str) -> None:
    assert answered(address, "curl http://localhost:1234/health")["status"] == "ok"


def test_the_three_models_are_listed_with_their_windows(address: str) -> None:
    listed = {each["id"]: each for each in answered(address, "curl http://localhost:1234/v1/models")["data"]}
    assert len(listed) == 3
    assert listed[GEMMA]["context_window"] == 4096
    assert listed[ABSENT]["state"] == "not_downloaded"


def test_a_chat_is_answered_by_alias_part_of_a_name_and_repository(address: str) -> None:
    example = """
curl http://localhost:1234/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "gemma",
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 5
  }'
"""
    for name in ("gemma", "gemma-3-4b-it", GEMMA):
        answer = answered(address, example.replace('"gemma"', f'"{name}"'))
        assert answer["model"] == GEMMA
    with openai.OpenAI(base_url=f"{address}/v1", api_key="not-needed", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="gemma", messages=[{"role": "user", "content": "Hello!"}], stream=True, max_tokens=5
        )
        assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] in ("stop", "length")


def test_pages_in_a_browser_may_call(address: str) -> None:
    asked = typed(address, 'curl -si -H "Origin: https://example.org" http://localhost:1234/health')
    assert "access-control-allow-origin: *" in asked.lower()
