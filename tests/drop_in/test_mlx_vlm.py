"""mlx_vlm.server: the examples of its README (0.7.10), under their headings, and of docs/usage.md.

Their order is the README's, but that those of one model come together: each swap is a load.

Where an example has a file (`/path/to/image.jpg`), the folder is inside `--media-path`: elsewhere a file is refused.
"""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from pippin.config.errors import ConfigError
from tests.drop_in.examples import Reader, reading, settings_of, started, warnings_of
from tests.drop_in.tiny_cache import TinyCache
from tests.engines.images.tiny_pipelines import tiny_z_image
from tests.engines.language.vision.test_vision_adapters import OLD, adapter
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.speech.recordings import wav
from tests.engines.speech.test_speech_models import write_model
from tests.soak.models import WHISPER, write_whisper

PRELOADED = "mlx-community/Qwen2.5-VL-3B-Instruct-4bit"
LARGE = "mlx-community/Qwen2.5-VL-32B-Instruct-8bit"
SMALL = "mlx-community/Qwen2-VL-2B-Instruct-4bit"
SCHEMA = "mlx-community/Qwen3.5-4B-MLX-4bit"
CACHED = "Qwen/Qwen3-VL-4B-Instruct"
HEARS = "mlx-community/gemma-3n-E2B-it-4bit"
EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"
PAINTER = "Qwen/Qwen-Image"
RANKER = "mlx-community/Qwen3-Reranker-0.6B-4bit"
SPEAKER = "mlx-community/pocket-tts"
HEARER = "mlx-community/whisper-tiny"
WRITER = "mlx-community/Llama-3.2-3B-Instruct-4bit"
Z_IMAGE = "Tongyi-MAI/Z-Image"
LOOPBACK = ("--host", "127.0.0.1")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`mlx_vlm.server --port 8080 --model ...`, with the models of the other examples in the cache."""
    home = tmp_path_factory.mktemp("mlx_vlm")
    cache = TinyCache(home)
    cache.vision(PRELOADED, LARGE, SMALL)
    cache.vision(CACHED, family="qwen3_vl")
    cache.vision(SCHEMA, family="qwen3_5")
    cache.vision(HEARS, family="gemma4_unified")
    cache.encoder(EMBEDDER)
    cache.encoder(RANKER, ranks=True)
    cache.images(PAINTER, "QwenImagePipeline")
    write_model(cache.place(SPEAKER))
    images = home / "repo" / "examples" / "images"
    images.mkdir(parents=True)
    (images / "renewables_california.png").write_bytes(picture(64, 48))
    (home / "image.jpg").write_bytes(picture(48, 32, format="JPEG"))
    for name in ("audio.wav", "audio1.wav", "audio2.mp3"):
        (home / name).write_bytes(wav(1.0, len(name)))
    typed = f"mlx_vlm.server --port 8080 --model {PRELOADED}"
    places = {"/path/to": str(home)}
    with reading(home, typed, *LOOPBACK, web="https://example.com", places=places) as reader:
        yield reader


@pytest.mark.parametrize(
    "typed",
    [
        "mlx_vlm.server --port 8080",
        "mlx_vlm.server --model some/model",
        """mlx_vlm.server --model some/language \\
  --image-model some/images \\
  --tts-model some/speech \\
  --stt-model some/hearing""",
        "mlx_vlm.server --model some/model --adapter-path some/adapter",
        "mlx_vlm.server --trust-remote-code",
        "mlx_vlm.server --model Qwen/Qwen3.5-4B --enable-thinking",
        """mlx_vlm.server --model Qwen/Qwen3.5-4B \\
  --enable-thinking \\
  --thinking-budget 512 \\
  --thinking-start-token "<think>" \\
  --thinking-end-token "</think>\"""",
        "mlx_vlm.server --api-key secret-token",
        "mlx_vlm.server --model-dir /Volumes/Models --model-dir ~/my-custom-model",
        """mlx_vlm.server --model prism-ml/Ternary-Bonsai-2-2B-mlx-2bit \\
  --min-pixels 1048576 --max-pixels 4194304""",
        "MLX_TRUST_REMOTE_CODE=true mlx_vlm.server",
        """APC_ENABLED=1 \\
APC_NUM_BLOCKS=4096 \\
mlx_vlm.server --model Qwen/Qwen3-VL-4B-Instruct --kv-bits 8 --port 8080""",
        """APC_ENABLED=1 \\
APC_NUM_BLOCKS=4096 \\
APC_DISK_PATH=~/.cache/mlx-vlm/caching \\
APC_DISK_MAX_GB=3 \\
APC_DISK_SHARD_MAX_BLOCKS=256 \\
mlx_vlm.server --model Qwen/Qwen3-VL-4B-Instruct --port 8080""",
        "mlx_vlm.server --model google/gemma-4-26b-a4b-it --kv-bits 8",
        "mlx_vlm.server --model mlx-community/Qwen2-VL-2B-Instruct-4bit --top-logprobs-k 5",
        "TOP_LOGPROBS_K=5 mlx_vlm.server --model mlx-community/Qwen2-VL-2B-Instruct-4bit",
        "python -m mlx_vlm.server",
    ],
)
def test_server(typed: str) -> None:
    assert warnings_of(typed) == []
    assert settings_of(typed).server.port == 8080


def test_server_variables_of_the_cache() -> None:
    options = (
        settings_of("""APC_ENABLED=1 \\
APC_DISK_PATH=~/.cache/mlx-vlm/caching \\
APC_DISK_MAX_GB=3 \\
mlx_vlm.server --model Qwen/Qwen3-VL-4B-Instruct --port 8080""")
        .server.models[0]
        .options
    )
    assert (options.prefix_cache, options.cache_disk_max_gb) == (True, 3)
    assert str(options.cache_dir).endswith(".cache/mlx-vlm/caching")


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ("", "~/.cache/mlx-vlm/apc"),
        ("MLX_VLM_CACHE_HOME=/big/disk ", "/big/disk/apc"),
        ("APC_DISK_PATH=/fast MLX_VLM_CACHE_HOME=/big/disk ", "/fast"),
        ("APC_DISK_ENABLED=0 MLX_VLM_CACHE_HOME=/big/disk ", None),
    ],
)
def test_the_cache_is_kept_on_disk_where_it_was_kept_there(more: str, folder: str | None) -> None:
    settings = settings_of(f"APC_ENABLED=1 {more}mlx_vlm.server --model Qwen/Qwen3-VL-4B-Instruct")
    options = settings.server.models[0].options
    assert (options.prefix_cache, options.cache_dir, options.cache_disk_max_gb) == (True, folder, 20)


@pytest.mark.parametrize("typed", ["APC_ENABLED=0 ", ""])
def test_no_cache_is_kept_on_disk_that_was_not_asked_for(typed: str) -> None:
    settings = settings_of(f"{typed}MLX_VLM_CACHE_HOME=/big/disk mlx_vlm.server --model org/model")
    options = settings.server.models[0].options
    assert (options.prefix_cache, options.cache_dir) == (not typed, None)
    told = "MLX_VLM_CACHE_HOME has no effect without APC_ENABLED."
    assert told in [note.text for note in settings.notes]


def test_experts_are_in_memory(page: Reader) -> None:
    assert page.json("curl http://localhost:8080/v1/moe-offload/stats") == {"enabled": False}


def test_continuous_batching(page: Reader) -> None:
    health = page.json("""
curl http://localhost:8080/health
# {"status":"healthy","loaded_model":"...","apc_enabled":false}
""")
    assert (health["status"], health["loaded_model"]) == ("healthy", PRELOADED)
    assert isinstance(health["apc_enabled"], bool)
    assert {
        "loaded_adapter",
        "loaded_models",
        "loaded_context_size",
        "configured_context_limit",
        "effective_context_limit",
        "loaded_tool_parser",
        "continuous_batching_enabled",
    } <= health.keys()
    told = {"model": PRELOADED, "adapter": None, "model_kind": "text_generation"}
    assert health["loaded_models"] == {"text_generation": told}


def test_server_options_settings(page: Reader) -> None:
    changed = page.json("""
curl -X PATCH http://localhost:8080/v1/settings \\
  -H 'Content-Type: application/json' \\
  -d '{"min_pixels": 1048576, "max_pixels": 4194304}'
""")
    assert changed["rejected"] == {}
    assert {"min_pixels", "max_pixels"} <= set(changed["needs_restart"]), "a difference: said, not dropped"
    told = page.json("""
curl -X PATCH http://localhost:8080/v1/settings -H 'Content-Type: application/json' \\
  -d '{"draft_kind": "mtp", "apc_num_blocks": 4096, "max_pixels": 4194304}'
""")
    assert "draft_kind" in told["needs_restart"]
    assert "not needed: the cache is sized" in told["notes"]["apc_num_blocks"], (
        "nothing is dropped without a word"
    )
    assert "max_pixels" not in told["notes"]
    page.bash("curl -X PATCH http://localhost:8080/v1/settings -d '{\"max_tokens\": 77}'")
    undone = page.json("""
curl -X PATCH http://localhost:8080/v1/settings -H 'Content-Type: application/json' \\
  -d '{"op": "replace", "values": {}}'
""")
    assert (undone["op"], undone["current"]["max_tokens"]) == ("replace", 2048), "as at the start"


def test_live_settings(page: Reader) -> None:
    """docs/usage.md; `turboquant` is refused by name."""
    told = page.json("""
curl -s -X PATCH http://127.0.0.1:8080/v1/settings \\
  -H 'Content-Type: application/json' \\
  -d '{"kv_quant_scheme": "turboquant"}'
""")
    assert "kv_quant_scheme" in json.dumps(told)
    replaced = page.json("""
# replace: reset everything to its boot-time default, then apply these
curl -X PATCH http://127.0.0.1:8080/v1/settings \\
  -H 'Content-Type: application/json' \\
  -d '{"op": "replace", "values": {"apc_enabled": true}}'
""")
    assert (replaced["op"], replaced["rejected"]) == ("replace", {})


@pytest.mark.long
def test_automatic_prefix_caching(page: Reader) -> None:
    typed = """
curl -X POST "http://localhost:8080/v1/chat/completions" \\
  -H "Content-Type: application/json" \\
  -H "X-APC-Tenant: demo" \\
  -d '{
    "model": "Qwen/Qwen3-VL-4B-Instruct",
    "messages": [{
      "role": "user",
      "content": "Paste a long shared document here.\\n\\nNow answer question A."
    }],
    "max_tokens": 128
  }'
"""
    first, again = page.json(typed), page.json(typed)
    other = page.json(typed.replace("demo", "other"))
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, again, other)]
    assert cached[1] > 0, "the tenant's own"
    assert cached[2] == 0, "another tenant's are apart"
    assert page.json("curl http://localhost:8080/v1/cache/stats")["lookups_hit"] >= 1
    reset = page.json("curl -X POST http://localhost:8080/v1/cache/reset")
    assert (reset["enabled"], reset["status"]) == (True, "cleared")


def test_automatic_prefix_caching_settings(page: Reader) -> None:
    told = page.json("""
curl -X PATCH http://localhost:8080/v1/settings \\
  -H 'Content-Type: application/json' \\
  -d '{
    "apc_enabled": true,
    "apc_disk_enabled": true,
    "apc_memory_max_gb": 2,
    "apc_disk_max_gb": 20,
    "apc_checkpoint_interval_tokens": 1024
  }'
""")
    assert told["rejected"] == {}


@pytest.mark.long
def test_structured_outputs(page: Reader) -> None:
    """The example's limits are there so that an answer ends; `description` alone is shorter here."""
    page.python("""
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AnimalResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    animal: Literal["dog", "cat", "bird", "unknown"]
    species: str = Field(max_length=60)
    description: str = Field(max_length=200)


schema = AnimalResult.model_json_schema()

from openai import OpenAI

client = OpenAI(base_url="http://localhost:8080/v1", api_key="not-needed")

response = client.chat.completions.create(
    model="mlx-community/Qwen3.5-4B-MLX-4bit",
    messages=[
        {"role": "user", "content": "Return a dog object."},
    ],
    response_format={
        "type": "json_schema",
        "json_schema": {
            "name": "AnimalResult",
            "strict": True,
            "schema": schema,
        },
    },
)

result = AnimalResult.model_validate_json(response.choices[0].message.content)
print(result)
""")
    assert page.names["result"].animal in ("dog", "cat", "bird", "unknown")
    answer = page.json("""
curl -X POST "http://localhost:8080/v1/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen3.5-4B-MLX-4bit",
    "messages": [{
      "role": "user",
      "content": [
        {"type": "text", "text": "Identify the main animal in this image."},
        {"type": "image_url", "image_url": {"url": "/path/to/image.jpg"}}
      ]
    }],
    "response_format": {
      "type": "json_schema",
      "json_schema": {
        "name": "AnimalResult",
        "strict": true,
        "schema": {
          "type": "object",
          "properties": {
            "animal": {"type": "string", "enum": ["dog", "cat", "bird", "unknown"]},
            "species": {"type": "string", "maxLength": 60},
            "description": {"type": "string", "maxLength": 200}
          },
          "required": ["animal", "species", "description"],
          "additionalProperties": false
        }
      }
    },
    "max_tokens": 256
  }'
""")
    content = answer["choices"][0]["message"]["content"]
    assert content.lstrip().startswith("{")
    if answer["choices"][0]["finish_reason"] == "stop":
        assert set(json.loads(content)) == {"animal", "species", "description"}


def test_list_available_models(page: Reader) -> None:
    listed = {each["id"]: each for each in page.json('curl "http://localhost:8080/models"')["data"]}
    assert {PRELOADED, LARGE, SMALL, EMBEDDER, RANKER, SPEAKER} <= listed.keys()
    assert isinstance(listed[PRELOADED]["loaded"], bool)


def test_list_available_models_of_other_folders(page: Reader) -> None:
    """Kept on purpose: a client's word opens no folder; `--model-dir` and `--model-root` do."""
    told = page.bash("""
curl -s --get "http://localhost:8080/v1/models" \\
  --data-urlencode "model_dir=/Volumes/Models" \\
  --data-urlencode "model_dir=/Users/me/my custom model"
""")
    assert "--model-dir" in json.loads(told)["error"]["message"]


def test_image_defaults(page: Reader) -> None:
    """`/images/defaults` of its newest version, known without loading anything."""
    asked = "curl -s 'http://localhost:8080{}/images/defaults?model={}&task={}'"
    for version in ("", "/v1"):
        assert page.json(asked.format(version, PAINTER, "generate")) == {"steps": 30, "guidance": 1.0}
    for model, task, named in ((PAINTER, "draw", "task"), (PRELOADED, "edit", "model")):
        assert page.json(asked.format("", model, task))["error"]["param"] == named
    assert "image_generation" not in page.json("curl http://localhost:8080/health")["loaded_models"]


@pytest.mark.long
def test_embeddings(page: Reader) -> None:
    answer = page.json("""
curl -X POST "http://localhost:8080/v1/embeddings" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "input": ["The quick brown fox.", "A fast auburn fox."]
  }'
""")
    assert [len(item["embedding"]) for item in answer["data"]] == [32, 32]


@pytest.mark.long
def test_reranking(page: Reader) -> None:
    answer = page.json("""
curl -X POST "http://localhost:8080/v1/rerank" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen3-Reranker-0.6B-4bit",
    "query": "What is the capital of France?",
    "documents": ["Berlin is in Germany.", "Paris is the capital of France."],
    "top_n": 1,
    "return_documents": true
  }'
""")
    [result] = answer["results"]
    assert "France" in json.dumps(result) or "Germany" in json.dumps(result)
    plain = page.json(
        f"""
curl -X POST "http://localhost:8080/v1/rerank" -H "Content-Type: application/json" \\
  -d '{{"model": "{RANKER}", "query": "France?", "documents": ["Berlin", "Paris"]}}'
"""
    )
    assert all(each.keys() == {"index", "relevance_score"} for each in plain["results"]), "unless asked for"


@pytest.mark.long
def test_log_probabilities(page: Reader) -> None:
    """Without `--top-logprobs-k`, which is not needed."""
    answer = page.json("""
curl -X POST "http://localhost:8080/v1/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen2-VL-2B-Instruct-4bit",
    "messages": [{"role":"user","content":"Say hi in 3 words."}],
    "max_tokens": 8,
    "logprobs": true,
    "top_logprobs": 3
  }'
""")
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert tokens
    assert all(
        token.keys() >= {"token", "logprob", "bytes"} and len(token["top_logprobs"]) == 3 for token in tokens
    )


def test_text_input(page: Reader) -> None:
    chunks = page.events("""
curl -X POST "http://localhost:8080/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen2-VL-2B-Instruct-4bit",
    "messages": [
      {
        "role": "user",
        "content": "Hello, how are you"
      }
    ],
    "stream": true,
    "max_tokens": 100
  }'
""")
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    health = page.json('curl "http://localhost:8080/health"')
    assert health["loaded_model"] == SMALL
    assert health["loaded_adapter"] is None
    assert health["loaded_models"]["text_generation"]["model"] == SMALL, "one of a kind at a time, as there"


@pytest.mark.long
def test_responses_endpoint(page: Reader) -> None:
    """The document's body has `messages` and `max_tokens`, which its own server refuses: `input` is required there."""
    typed = """
curl -s -X POST "http://localhost:8080/responses" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen2-VL-2B-Instruct-4bit",
    "messages": [
      {
        "role": "user",
        "content": [
          {"type": "input_text", "text": "What is in this image?"},
          {"type": "input_image", "image_url": "/path/to/image.jpg"}
        ]
      }
    ],
    "max_tokens": 100
  }'
"""
    assert "input" in page.json(typed)["error"]["message"]
    answer = page.json(typed.replace('"messages"', '"input"').replace('"max_tokens"', '"max_output_tokens"'))
    assert answer["status"] in ("completed", "incomplete")


def test_available_endpoints_metrics(page: Reader) -> None:
    page.bash(f"""
curl --fail http://localhost:8080/chat/completions -H "Content-Type: application/json" \\
  -d '{{"model": "{SMALL}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 1}}'
""")
    for address in ("/metrics", "/v1/metrics"):
        found = page.json(f"curl http://localhost:8080{address}")
        assert found["latest"]["generated_tokens"] >= 0
        assert found["summary"]["in_flight"] == 0
        windows = {f"sliding_decode_tok_s_{end}_{size}" for end in ("first", "last") for size in (32, 64)}
        assert {"decode_tok_s", *windows} <= found["latest"].keys()


@pytest.mark.long
def test_image_input(page: Reader) -> None:
    chunks = page.events("""
curl -X POST "http://localhost:8080/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/Qwen2.5-VL-32B-Instruct-8bit",
    "messages":
    [
      {
        "role": "system",
        "content": "You are a helpful assistant."
      },
      {
        "role": "user",
        "content": [
          {
            "type": "text",
            "text": "This is the chart for energy demand in California. Can you provide an analysis of the chart?"
          },
          {
            "type": "input_image",
            "image_url": "/path/to/repo/examples/images/renewables_california.png"
          }
        ]
      }
    ],
    "stream": true,
    "max_tokens": 1000
  }'
""")
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.long
def test_audio_input(page: Reader) -> None:
    chunks = page.events("""
curl -X POST "http://localhost:8080/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/gemma-3n-E2B-it-4bit",
    "messages": [
      {
        "role": "user",
        "content": [
          { "type": "text", "text": "Describe what you hear in these audio files" },
          { "type": "input_audio", "input_audio": "/path/to/audio1.wav" },
          { "type": "input_audio", "input_audio": "https://example.com/audio2.mp3" }
        ]
      }
    ],
    "stream": true,
    "max_tokens": 500
  }'
""")
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.long
def test_text_to_speech(page: Reader) -> None:
    """A tiny random model does not know when to end: `max_tokens` says it."""
    page.bash("""
curl --fail -X POST "http://localhost:8080/v1/audio/speech" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/pocket-tts",
    "input": "Hello from MLX VLM.",
    "voice": "fantine",
    "max_tokens": 12,
    "response_format": "mp3"
  }' \\
  --output speech.mp3
""")
    assert len((page.folder / "speech.mp3").read_bytes()) > 500


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A server that hears, speaks and paints. With Whisper: mlx-audio takes whatever is called Parakeet for one."""
    if not WHISPER.is_dir():
        pytest.fail("Fetch Whisper with `python scripts/fetch_test_models.py`.", pytrace=False)
    home = tmp_path_factory.mktemp("hearing")
    cache = TinyCache(home)
    cache.language(WRITER)
    write_whisper(cache.place(HEARER))
    write_model(cache.place(SPEAKER))
    tiny_z_image(cache.place(Z_IMAGE))
    (home / "audio.mp3").write_bytes(wav(2.0, 1))
    (home / "image.png").write_bytes(picture(64, 64))
    places = {"/path/to": str(home), "mlx-community/parakeet-tdt-0.6b-v3": HEARER}
    typed = f"mlx_vlm.server --stt-model {HEARER} --tts-model {SPEAKER} --model {WRITER}"
    with reading(home, typed, *LOOPBACK, "--media-path", str(home), places=places) as reader:
        yield reader


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("address", ["transcriptions", "translations"])
def test_speech_to_text(hearing: Reader, address: str) -> None:
    answer = hearing.json(f"""
curl -X POST "http://localhost:8080/v1/audio/{address}" \\
  -F model=mlx-community/parakeet-tdt-0.6b-v3 \\
  -F file=@/path/to/audio.mp3 \\
  -F response_format=json
""")
    assert isinstance(answer["text"], str)


@pytest.mark.long
@pytest.mark.model
def test_image_generation_and_edits(hearing: Reader) -> None:
    """The fields of its two endpoints, as JSON with a path, and as OpenAI's form."""
    answers = [
        hearing.json("""
curl -X POST "http://localhost:8080/v1/images/generations" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "Tongyi-MAI/Z-Image", "prompt": "a cat", "size": "32x32", "steps": 2, "seed": 3}'
"""),
        hearing.json("""
curl -X POST "http://localhost:8080/v1/images/edits" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "Tongyi-MAI/Z-Image", "prompt": "red", "image": "/path/to/image.png", "size": "32x32", "steps": 2}'
"""),
        hearing.json("""
curl -X POST "http://localhost:8080/v1/images/edits" \\
  -F model=Tongyi-MAI/Z-Image -F prompt=red -F image=@/path/to/image.png -F size=32x32 -F steps=2
"""),
    ]
    for answer in answers:
        with Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))) as painted:
            assert painted.size == (32, 32)
    refused = hearing.json("""
curl -X POST "http://localhost:8080/v1/images/generations" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "Tongyi-MAI/Z-Image", "prompt": "a cat", "output_path": "/tmp/cat.png"}'
""")
    assert refused["error"]["param"] == "output_path"


@pytest.mark.long
def test_multi_modal(page: Reader) -> None:
    answer = page.json("""
curl -X POST "http://localhost:8080/chat/completions" \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/gemma-3n-E2B-it-4bit",
    "messages": [
      {
        "role": "user",
        "content": [
          {"type": "input_image", "image_url": "/path/to/image.jpg"},
          {"type": "input_audio", "input_audio": "/path/to/audio.wav"}
        ]
      }
    ],
    "max_tokens": 100
  }'
""")
    assert answer["model"] == HEARS


def test_generate_of_its_old_versions_is_no_more(page: Reader) -> None:
    told = page.json('curl -s -X POST http://localhost:8080/generate -d "{}"')
    assert "/v1/chat/completions" in told["error"]["message"]


def test_available_endpoints_unload(page: Reader) -> None:
    unloaded = page.json('curl -X POST "http://localhost:8080/unload"')
    assert unloaded["status"] == "success"
    assert page.json('curl -X POST "http://localhost:8080/unload"')["status"] == "no_model_loaded"


def test_require_bearer_authentication(tmp_path: Path) -> None:
    typed = "mlx_vlm.server --api-key secret-token"
    with started(tmp_path, typed, *LOOPBACK, ready="serves at") as address:
        assert httpx.get(f"{address}/v1/models", trust_env=False).status_code == 401
        headers = {"Authorization": "Bearer secret-token"}
        assert httpx.get(f"{address}/v1/models", headers=headers, trust_env=False).status_code == 200


@pytest.mark.long
def test_server_with_an_adapter(tmp_path: Path) -> None:
    """`--adapter-path`, in mlx-vlm's own format; a request may give the path again, and no other."""
    TinyCache(tmp_path).vision(PRELOADED)
    folder = adapter(tmp_path / "adapter", OLD, ("A", "B"))
    typed = f"mlx_vlm.server --model {PRELOADED} --adapter-path {folder}"
    asked = """
curl -s http://localhost:8080/chat/completions -H "Content-Type: application/json" \\
  -d '{{"adapter_path": "{}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 4}}'
"""
    with reading(tmp_path, typed, *LOOPBACK) as reader:
        health = reader.json("curl http://localhost:8080/health")
        assert health["loaded_adapter"] == str(folder)
        assert health["loaded_models"]["text_generation"]["adapter"] == str(folder)
        assert reader.json(asked.format(folder))["model"] == PRELOADED
        assert reader.json(asked.format("/somebody/elses"))["error"]["param"] == "adapter_path"
        unloaded = reader.json('curl -X POST "http://localhost:8080/unload"')["unloaded"]
        assert (unloaded["model_name"], unloaded["adapter_name"]) == (PRELOADED, str(folder))
        assert unloaded["models"]["text_generation"]["model"] == PRELOADED


@pytest.mark.parametrize(
    "typed",
    [
        "mlx_vlm.server --model google/gemma-4-26b-a4b-it --kv-bits 3.5 --kv-quant-scheme turboquant",
        "mlx_vlm server --model google/gemma-4-26b-a4b-it --kv-bits 3.5 --kv-quant-scheme turboquant",
    ],
)
def test_turboquant_is_refused_with_the_way_out(typed: str) -> None:
    with pytest.raises(ConfigError, match="kv_key_bits 3 and kv_value_bits 4"):
        settings_of(typed)
