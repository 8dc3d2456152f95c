"""MLX Server: the examples of its README, in their order, under their headings; the swap of models, which has to load
them, comes last."""

import base64
from collections.abc import Iterator

import pytest

from tests.drop_in.examples import Reader, reading, settings_of, warnings_of
from tests.drop_in.tiny_cache import TinyCache
from tests.engines.language.vision.tiny_vision_models import picture

GEMMA = "mlx-community/gemma-3-4b-it-4bit"
QWEN = "mlx-community/Qwen3-VL-4B-Instruct-4bit"
CLIENT = """
import openai

client = openai.OpenAI(base_url="http://localhost:1234/v1", api_key="x", max_retries=0)
"""
ABSENT = "mlx-community/gemma-3n-E4B-it-4bit"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`./run.sh`: Gemma, which loads with its first request."""
    home = tmp_path_factory.mktemp("mlx_server")
    cache = TinyCache(home)
    cache.vision(GEMMA, family="gemma3")
    cache.vision(QWEN, family="qwen3_vl")
    with reading(home, "./run.sh", named=CLIENT, ready="serves at") as reader:
        yield reader


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        ("./run.sh", GEMMA),
        ("./run.sh qwen", "qwen"),
        ("python -m mlx_server.main --model mlx-community/gemma-3-4b-it-4bit --port 1234", GEMMA),
    ],
)
def test_quick_start(typed: str, model: str) -> None:
    server = settings_of(typed).server
    assert (server.host, server.port, server.models[0].path) == ("127.0.0.1", 1234, model)
    assert warnings_of(typed) == []


def test_api(page: Reader) -> None:
    listed = {each["id"]: each for each in page.json("curl http://localhost:1234/v1/models")["data"]}
    assert listed.keys() == {GEMMA, QWEN, ABSENT}
    assert all(listed[model]["context_window"] for model in (GEMMA, QWEN))
    assert listed[ABSENT]["state"] == "not_downloaded"
    assert {each["owned_by"] for each in listed.values()} == {"local"}
    assert page.json("curl http://localhost:1234/health")["status"] == "ok"


@pytest.mark.long
def test_vision(page: Reader) -> None:
    """The body of the document, sent by curl; its picture is cut off there."""
    data = base64.b64encode(picture(48, 32)).decode()
    body = """{
  "model": "mlx-community/gemma-3-4b-it-4bit",
  "messages": [{
    "role": "user",
    "content": [
      {"type": "text", "text": "What is in this image?"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}
    ]
  }]
}"""
    (page.folder / "body.json").write_text(body.replace("...", data))
    answer = page.json(
        'curl http://localhost:1234/v1/chat/completions -H "Content-Type: application/json" -d @body.json'
    )
    assert answer["model"] == GEMMA
    assert answer["usage"]["prompt_tokens"] > 50, "the picture has tokens"


@pytest.mark.long
def test_context_window_management(page: Reader) -> None:
    """What is said first is summarised; what still does not fit is refused in OpenAI's words."""
    page.python("""
[window] = [model.context_window for model in client.models.list() if model.id == "mlx-community/gemma-3-4b-it-4bit"]
turns = [{"role": role, "content": "word " * (window // 60)} for _ in range(6) for role in ("user", "assistant")]
turns.append({"role": "user", "content": "Hello"})
kept = client.chat.completions.create(model="gemma", messages=turns, max_tokens=8)
try:
    client.chat.completions.create(model="gemma", messages=[{"role": "user", "content": "word " * window}])
except openai.BadRequestError as error:
    code = error.code
""")
    assert page.names["kept"].choices[0].finish_reason in ("stop", "length")
    assert page.names["code"] == "context_length_exceeded"


def test_tool_use(page: Reader) -> None:
    page.python("""
called = client.chat.completions.create(
    model="gemma",
    messages=[{"role": "user", "content": "Weather in Oslo?"}],
    tools=[{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}, "required": ["city"]}}}],
    tool_choice="required",
)
[call, *_] = called.choices[0].message.tool_calls
""")
    assert page.names["call"].function.name == "get_weather"


def test_pages_in_a_browser_may_call(page: Reader) -> None:
    asked = page.bash('curl -si -H "Origin: https://example.org" http://localhost:1234/health')
    assert "access-control-allow-origin: *" in asked.lower()


def test_model_swapping(page: Reader) -> None:
    gemma = page.json("""
# Uses Gemma
curl http://localhost:1234/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{"model": "mlx-community/gemma-3-4b-it-4bit", "messages": [{"role": "user", "content": "Hello"}]}'
""")
    assert gemma["model"] == GEMMA
    qwen = page.json("""
# Swaps to Qwen
curl http://localhost:1234/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{"model": "mlx-community/Qwen3-VL-4B-Instruct-4bit", "messages": [{"role": "user", "content": "Hello"}]}'
""")
    assert qwen["model"] == QWEN
    assert list(page.json("curl http://localhost:1234/health")["loaded_models"]) == [QWEN], "one at a time"


def test_streams_end_with_their_usage(page: Reader) -> None:
    page.python("""
for chunk in client.chat.completions.create(
    model="qwen", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, stream=True):
    pass
""")
    assert page.names["chunk"].usage.total_tokens > 4
