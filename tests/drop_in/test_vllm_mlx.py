"""vllm-mlx: the examples of its documents, in their order, under their headings.

The documents are those of version 0.6.0: Quick Start, OpenAI-Compatible Server, Multimodal Models, Audio Support,
Embeddings, Reasoning Models, Tool Calling, MCP & Tool Calling, Warm Prompts, Multi-Model Serving, and the README. Where
an example needs a model that calls a tool or thinks, a scripted model says what the document shows.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.drop_in.examples import Reader, reading, settings_of, warnings_of
from tests.drop_in.tiny_cache import TinyCache
from tests.engines.language.tiny_heads import qwen_with_head
from tests.engines.language.vision.test_video import video
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.speech.recordings import wav
from tests.engines.speech.test_speech_models import write_model
from tests.soak.models import WHISPER, write_whisper

LLAMA = "mlx-community/Llama-3.2-3B-Instruct-4bit"
SEES = "mlx-community/Qwen3-VL-4B-Instruct-3bit"
E5 = "mlx-community/multilingual-e5-small-mlx"
MINI = "mlx-community/all-MiniLM-L6-v2-4bit"
RANKER = "mlx-community/bge-reranker-v2-m3"
CLIENT = """
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The server of the documents' examples of text, with the models that its examples load by request."""
    home = tmp_path_factory.mktemp("vllm_mlx")
    cache = TinyCache(home)
    cache.language(LLAMA)
    cache.encoder(E5, MINI)
    cache.encoder(RANKER, ranks=True)
    write_model(cache.place("mlx-community/Kokoro-82M-bf16"))
    typed = (
        f"vllm-mlx serve {LLAMA} --port 8000 --continuous-batching --enable-metrics --rerank-model {RANKER}"
    )
    with reading(home, typed, named=CLIENT) as reader:
        yield reader


def test_quick_start(page: Reader) -> None:
    page.python("""
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

response = client.chat.completions.create(
    model="mlx-community/Llama-3.2-3B-Instruct-4bit",
    messages=[{"role": "user", "content": "Hello!"}],
)
print(response.choices[0].message.content)
""")
    assert page.names["response"].model == LLAMA
    answer = page.json("""
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{"model": "default", "messages": [{"role": "user", "content": "Hello!"}]}'
""")
    assert answer["model"] == LLAMA


def test_chat_completions(page: Reader) -> None:
    page.python("""
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

# Non-streaming
response = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Hello!"}],
    max_tokens=100
)

# Streaming
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Tell me a story"}],
    stream=True
)
for chunk in stream:
    if chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="")
""")
    assert page.names["response"].usage.completion_tokens <= 100
    assert page.names["chunk"].choices[0].finish_reason in ("stop", "length")


def test_completions(page: Reader) -> None:
    page.python("""
response = client.completions.create(
    model="default",
    prompt="The capital of France is",
    max_tokens=50
)
""")
    assert page.names["response"].choices[0].finish_reason in ("stop", "length")


def test_models(page: Reader) -> None:
    listed = page.json("curl http://localhost:8000/v1/models")
    ids = [model["id"] for model in listed["data"]]
    assert ids[:2] == [LLAMA, RANKER]
    assert set(ids[2:]) == {E5, MINI, "kokoro"}, "what it loads by request, where it is on the disk"
    assert {model["owned_by"] for model in listed["data"]} == {"vllm-mlx"}


def test_embeddings(page: Reader) -> None:
    page.python("""
response = client.embeddings.create(
    model="mlx-community/multilingual-e5-small-mlx",
    input="Hello world"
)
print(response.data[0].embedding[:5])  # First 5 dimensions
""")
    assert page.names["response"].model == E5
    assert page.json("curl http://localhost:8000/v1/status")["model"] == LLAMA, "not the one loaded last"


def test_health_check(page: Reader) -> None:
    health = page.json("curl http://localhost:8000/health")
    assert (health["status"], health["model_name"], health["model_type"]) == ("healthy", LLAMA, "llm")
    assert health["available_models"][:2] == [LLAMA, RANKER]
    assert {
        "model_loaded",
        "engine_type",
        "mcp",
        "residency_state",
        "active_requests",
        "last_used_at",
    } <= health.keys()
    assert {"loaded_at", "auto_unload_idle_seconds", "last_error"} <= health.keys()


def test_metrics(page: Reader) -> None:
    told = page.bash("curl http://localhost:8000/metrics")
    assert 'vllm_mlx_engine_type{engine_type="batched"} 1.0' in told
    assert 'vllm_mlx_cache_type{cache_type="memory_aware_cache"} 1.0' in told
    cache = page.json("curl http://localhost:8000/v1/cache/stats")["engine_cache"]
    assert cache.keys() >= {"hits", "misses", "tokens_saved", "entry_count"}, "which its `bench-serve` reads"


def test_anthropic_messages_non_streaming(page: Reader) -> None:
    page.python("""
from anthropic import Anthropic

client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")

response = client.messages.create(
    model="default",
    max_tokens=256,
    messages=[{"role": "user", "content": "Hello!"}]
)
print(response.content[0].text)
""")
    assert page.names["response"].stop_reason in ("end_turn", "max_tokens")
    assert page.names["response"].usage.input_tokens > 0


def test_anthropic_messages_streaming(page: Reader) -> None:
    page.python("""
client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")
with client.messages.stream(
    model="default",
    max_tokens=256,
    messages=[{"role": "user", "content": "Tell me a story"}]
) as stream:
    for text in stream.text_stream:
        print(text, end="")
""")


def test_anthropic_messages_system_messages(page: Reader) -> None:
    page.python("""
client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")
# Plain string
response = client.messages.create(
    model="default",
    max_tokens=256,
    system="You are a helpful coding assistant.",
    messages=[{"role": "user", "content": "Write a hello world in Python"}]
)

# List of content blocks
response = client.messages.create(
    model="default",
    max_tokens=256,
    system=[
        {"type": "text", "text": "You are a helpful assistant."},
        {"type": "text", "text": "Be concise in your answers."},
    ],
    messages=[{"role": "user", "content": "What is 2+2?"}]
)
""")
    assert page.names["response"].type == "message"


def test_anthropic_messages_multi_turn_conversations(page: Reader) -> None:
    page.python("""
client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")
messages = [
    {"role": "user", "content": "My name is Alice."},
    {"role": "assistant", "content": "Nice to meet you, Alice!"},
    {"role": "user", "content": "What's my name?"},
]

response = client.messages.create(
    model="default",
    max_tokens=100,
    messages=messages
)
""")
    assert page.names["response"].usage.output_tokens <= 100


def test_anthropic_messages_token_counting(page: Reader) -> None:
    page.python("""
import requests

resp = requests.post("http://localhost:8000/v1/messages/count_tokens", json={
    "model": "default",
    "messages": [{"role": "user", "content": "Hello, how are you?"}],
    "system": "You are helpful.",
    "tools": [{
        "name": "search",
        "description": "Search the web",
        "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}
    }]
})
print(resp.json())  # {"input_tokens": 42}
""")
    assert page.names["resp"].json()["input_tokens"] > 42, "a token a byte"


def test_anthropic_messages_curl_examples(page: Reader) -> None:
    message = page.json("""
curl http://localhost:8000/v1/messages \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "max_tokens": 256,
    "messages": [{"role": "user", "content": "Hello!"}]
  }'
""")
    assert message["role"] == "assistant"
    events = page.events("""
curl http://localhost:8000/v1/messages \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "max_tokens": 256,
    "stream": true,
    "messages": [{"role": "user", "content": "Tell me a joke"}]
  }'
""")
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    counted = page.json("""
curl http://localhost:8000/v1/messages/count_tokens \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "messages": [{"role": "user", "content": "Hello!"}]
  }'
# {"input_tokens": 12}
""")
    assert set(counted) == {"input_tokens"}


def test_using_with_claude_code(page: Reader) -> None:
    typed = """
vllm-mlx serve mlx-community/Qwen3-Coder-Next-235B-A22B-4bit \\
  --continuous-batching \\
  --enable-auto-tool-choice \\
  --tool-call-parser hermes
"""
    assert warnings_of(typed) == []
    assert settings_of(typed).server.model_defaults.tool_call_parser == "hermes"
    page.python("""
from anthropic import Anthropic
client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")
reply = client.messages.create(
    model="claude-of-tomorrow", max_tokens=5, messages=[{"role": "user", "content": "Hello!"}])
""")
    assert page.names["reply"].type == "message"


def test_server_status(page: Reader) -> None:
    status = page.json("curl -s http://localhost:8000/v1/status | python -m json.tool")
    assert (status["status"], status["model"]) == ("running", LLAMA)
    shown = {
        "uptime_s",
        "steps_executed",
        "num_running",
        "num_waiting",
        "total_requests_processed",
        "total_prompt_tokens",
        "total_completion_tokens",
        "metal",
        "cache",
        "requests",
    }
    assert shown <= status.keys()
    assert {"active_memory_gb", "peak_memory_gb", "cache_memory_gb"} <= status["metal"].keys()
    assert {"type", "entries", "hit_rate", "memory_mb"} <= status["cache"].keys()
    embeds = status["embedding"]
    assert (embeds["model"], embeds["max_length"], embeds["max_length_ceiling"]) == (E5, 512, None)
    assert embeds["overflow_policy"] == "truncate"
    assert (status["residency"]["state"], status["residency"]["model_name"]) == ("loaded", LLAMA)
    assert status["mtp"]["enabled"] is False


def test_curl_examples(page: Reader) -> None:
    answer = page.json("""
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 100
  }'
""")
    assert answer["usage"]["completion_tokens"] <= 100
    chunks = page.events("""
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "messages": [{"role": "user", "content": "Hello!"}],
    "stream": true
  }'
""")
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert chunks[-1]["usage"]["completion_tokens"] > 0, "in the last chunk, unasked, as there"


@pytest.mark.long
def test_embeddings_guide(page: Reader) -> None:
    printed = page.python("""
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

# Single text
response = client.embeddings.create(
    model="mlx-community/all-MiniLM-L6-v2-4bit",
    input="Hello world"
)
print(response.data[0].embedding[:5])  # First 5 dimensions

# Batch of texts
response = client.embeddings.create(
    model="mlx-community/all-MiniLM-L6-v2-4bit",
    input=[
        "I love machine learning",
        "Deep learning is fascinating",
        "Natural language processing rocks"
    ]
)
for item in response.data:
    print(f"Text {item.index}: {len(item.embedding)} dimensions")
""")
    assert "Text 2: 32 dimensions" in printed
    answer = page.json("""
curl http://localhost:8000/v1/embeddings \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "mlx-community/all-MiniLM-L6-v2-4bit",
    "input": ["Hello world", "How are you?"]
  }'
""")
    assert (len(answer["data"]), answer["model"]) == (2, MINI)


def test_reranking(page: Reader) -> None:
    answer = page.json("""
curl http://localhost:8000/v1/rerank -H 'Content-Type: application/json' -d '{
  "model": "default",
  "query": "apple silicon inference",
  "documents": ["MLX is Apples framework", "Metal kernels on M-series", "CUDA on NVIDIA"]
}'
""")
    assert {result["index"] for result in answer["results"]} == {0, 1, 2}
    assert "document" in answer["results"][0], "returned by default, as there"


@pytest.mark.long
@pytest.mark.model
def test_speech_to_text(tmp_path: Path) -> None:
    """The audio guide: a name of its own, which a request loads."""
    if not WHISPER.is_dir():
        pytest.fail("Fetch Whisper with `python scripts/fetch_test_models.py`.", pytrace=False)
    cache = TinyCache(tmp_path)
    cache.language(LLAMA)
    write_whisper(cache.place("mlx-community/whisper-large-v3-mlx"))
    (tmp_path / "audio.mp3").write_bytes(wav(1.0, 1))
    with reading(tmp_path, f"vllm-mlx serve {LLAMA}", named=CLIENT) as reader:
        reader.python("""
# Transcribe audio file
with open("audio.mp3", "rb") as f:
    transcript = client.audio.transcriptions.create(
        model="whisper-large-v3",
        file=f,
        language="en"  # optional
    )
print(transcript.text)
""")
        answer = reader.json("""
curl http://localhost:8000/v1/audio/transcriptions \\
  -F file=@audio.mp3 \\
  -F model=whisper-large-v3
""")
        with pytest.raises(openai.BadRequestError, match="--media-path"):
            reader.python("""
response = client.chat.completions.create(
    model="default",
    messages=[{
        "role": "user",
        "content": [
            {"type": "text", "text": "Summarize this audio"},
            {"type": "audio_url", "audio_url": {"url": "file://meeting.mp3"}}
        ]
    }]
)
""")
    assert isinstance(answer["text"], str)


@pytest.mark.long
def test_text_to_speech(page: Reader) -> None:
    page.bash("""
curl --fail http://localhost:8000/v1/audio/speech \\
  -d '{"model": "kokoro", "input": "Hello world", "voice": "af_heart", "max_tokens": 12}' \\
  -H "Content-Type: application/json" \\
  --output speech.wav
""")
    assert (page.folder / "speech.wav").read_bytes()[:4] == b"RIFF"


@pytest.mark.long
def test_voices(page: Reader) -> None:
    voices = page.json("curl http://localhost:8000/v1/audio/voices?model=kokoro")
    assert isinstance(voices["voices"], list)


def test_clear_the_in_memory_prefix_cache(page: Reader) -> None:
    cleared = page.json("curl -X DELETE http://localhost:8000/v1/cache/prefix")
    assert (cleared["status"], cleared["rewarm_scheduled"]) == ("cleared", False)


def test_names_that_are_not_served(page: Reader) -> None:
    """As its newest version: only what is served has a name."""
    with openai.OpenAI(base_url=f"{page.address}/v1", api_key="any", max_retries=0) as client:
        for name in ("org/private", "gpt-4"):
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "typed",
    [
        "vllm-mlx serve mlx-community/Llama-3.2-3B-Instruct-4bit --port 8000",
        "vllm-mlx serve mlx-community/Llama-3.2-3B-Instruct-4bit --port 8000 --continuous-batching --use-paged-cache",
        """vllm-mlx serve mlx-community/Qwen3-8B-4bit \\
  --reasoning-parser qwen3 \\
  --default-chat-template-kwargs '{"enable_thinking": false}'""",
        """vllm-mlx serve mlx-community/Devstral-Small-2507-4bit \\
  --enable-auto-tool-choice \\
  --tool-call-parser mistral""",
        "vllm-mlx serve mlx-community/DeepSeek-R1-Distill-Qwen-7B-4bit --reasoning-parser deepseek_r1",
        "vllm-mlx serve model --continuous-batching --stream-interval 5",
        """vllm-mlx serve mlx-community/Qwen3-0.6B-8bit \\
  --continuous-batching \\
  --use-paged-cache \\
  --api-key your-secret-key \\
  --rate-limit 60 \\
  --timeout 120 \\
  --port 8000""",
        "vllm-mlx serve my-llm-model --embedding-model mlx-community/all-MiniLM-L6-v2-4bit",
        """vllm-mlx serve my-llm-model \\
  --embedding-model mlx-community/embeddinggemma-300m-6bit \\
  --embedding-max-length 1024 \\
  --embedding-overflow-policy error""",
        "vllm-mlx serve mlx-community/Qwen3-4B-4bit --enable-auto-tool-choice --tool-call-parser auto",
        *(
            f"vllm-mlx serve some/model --enable-auto-tool-choice --tool-call-parser {parser}"
            for parser in "mistral qwen llama deepseek granite nemotron glm47 kimi xlam functionary hermes".split()
        ),
        "vllm-mlx serve mlx-community/Qwen3-VL-4B-Instruct-3bit --enable-mllm-cache",
        """vllm-mlx serve mlx-community/Qwen3-VL-4B-Instruct-3bit \\
    --enable-mllm-cache \\
    --mllm-cache-max-mb 1024""",
        "vllm-mlx serve MODEL --metrics",
    ],
)
def test_other_starts_are_understood(typed: str) -> None:
    assert warnings_of(typed) == []


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`vllm-mlx serve mlx-community/Qwen3-VL-4B-Instruct-3bit --port 8000`, and a web for the examples' addresses."""
    home = tmp_path_factory.mktemp("multimodal")
    TinyCache(home).vision(SEES, family="qwen3_vl")
    for name in ("image.jpg", "cat.jpg", "photo.jpg"):
        (home / name).write_bytes(picture(48, 32, format="JPEG"))
    (home / "video.mp4").write_bytes(video(24))
    typed = "vllm-mlx serve mlx-community/Qwen3-VL-4B-Instruct-3bit --port 8000"
    with reading(home, typed, web="https://example.com", named=CLIENT) as reader:
        yield reader


@pytest.mark.long
def test_image_analysis(seeing: Reader) -> None:
    seeing.python("""
# Image from URL
response = client.chat.completions.create(
    model="default",
    messages=[{
        "role": "user",
        "content": [
            {"type": "text", "text": "What's in this image?"},
            {"type": "image_url", "image_url": {"url": "https://example.com/image.jpg"}}
        ]
    }],
    max_tokens=256
)
print(response.choices[0].message.content)
""")
    assert seeing.names["response"].model == SEES


@pytest.mark.long
def test_base64_images(seeing: Reader) -> None:
    seeing.python("""
import base64

def encode_image(path):
    with open(path, "rb") as f:
        return base64.b64encode(f.read()).decode("utf-8")

base64_image = encode_image("photo.jpg")
response = client.chat.completions.create(
    model="default",
    messages=[{
        "role": "user",
        "content": [
            {"type": "text", "text": "Describe this image"},
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{base64_image}"}}
        ]
    }]
)
""")
    prompt = seeing.names["response"].usage.prompt_tokens
    seeing.python("""
blind = client.chat.completions.create(
    model="default", messages=[{"role": "user", "content": "Describe this image"}], max_tokens=2)
""")
    assert prompt > seeing.names["blind"].usage.prompt_tokens, "the picture has tokens"


@pytest.mark.long
def test_images_via_curl(seeing: Reader) -> None:
    answer = seeing.json("""
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "messages": [{
      "role": "user",
      "content": [
        {"type": "text", "text": "What is in this image?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/image.jpg"}}
      ]
    }],
    "max_tokens": 256
  }'
""")
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.long
def test_video_analysis(seeing: Reader) -> None:
    seeing.python("""
response = client.chat.completions.create(
    model="default",
    messages=[{
        "role": "user",
        "content": [
            {"type": "text", "text": "What happens in this video?"},
            {"type": "video_url", "video_url": {"url": "https://example.com/video.mp4"}}
        ]
    }],
    max_tokens=512
)
""")
    assert seeing.names["response"].usage.prompt_tokens > 40


@pytest.mark.long
def test_video_parameters(seeing: Reader) -> None:
    """`video.mp4` is a path: inside `--media-path` alone."""
    seeing.python("""
response = client.chat.completions.create(
    model="default",
    messages=[{
        "role": "user",
        "content": [
            {"type": "text", "text": "Describe this video"},
            {"type": "video_url", "video_url": {"url": "video.mp4"}}
        ]
    }],
    extra_body={
        "video_fps": 2.0,
        "video_max_frames": 32
    }
)
""")
    answer = seeing.json("""
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "messages": [{
      "role": "user",
      "content": [
        {"type": "text", "text": "Describe this video"},
        {"type": "video_url", "video_url": {"url": "https://example.com/video.mp4"}}
      ]
    }],
    "video_fps": 2.0,
    "video_max_frames": 16
  }'
""")
    assert answer["usage"]["prompt_tokens"] > 40


SCRIPT = {
    "context_window": 8192,
    "rules": [
        {"when": {"tool_result": "unny|22"}, "say": "The weather in Paris is sunny, 22C."},
        {"when": {"tool_result": "file"}, "say": "The /tmp directory contains 2 files"},
        {
            "when": {"user": "weather", "tools": ["get_weather"]},
            "say": '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        },
        {
            "when": {"user": "25", "tools": ["calculator"]},
            "say": '<tool_call>{"name": "calculator", "arguments": {"expression": "25 * 17"}}</tool_call>',
        },
        {
            "when": {"user": "List files", "tools": ["filesystem__list_directory"]},
            "say": '<tool_call>{"name": "filesystem__list_directory", "arguments": {"path": "/tmp"}}</tool_call>',
        },
        {"when": {"user": "colors"}, "say": '{"colors": ["red", "blue", "green"]}'},
        {"when": {"user": ".*"}, "think": "Let me analyze this step by step.", "say": "The answer is 391."},
    ],
}


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The servers of the guides on tools, reasoning and MCP in one: a model that thinks and calls tools."""
    home = tmp_path_factory.mktemp("tools")
    script = home / "qwen3.script.json"
    script.write_text(json.dumps(SCRIPT))
    npx = home / "npx"  # as `npx -y @modelcontextprotocol/server-filesystem /tmp`
    npx.write_text(
        f"#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name('filesystem_server.py')} $3\n"
    )
    npx.chmod(0o755)
    file = home / "mcp.json"
    file.write_text("""
{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]
    }
  }
}
""")
    typed = (
        f"PATH={home}:/usr/bin:/bin vllm-mlx serve mlx-community/Qwen3-8B-4bit --reasoning-parser qwen3 "
        f"--enable-auto-tool-choice --tool-call-parser qwen --mcp-config {file}"
    )
    stand_in = {"mlx-community/Qwen3-8B-4bit": str(script)}
    with reading(home, typed, models=stand_in, named=CLIENT) as reader:
        yield reader


def test_anthropic_messages_tool_calling(acting: Reader) -> None:
    printed = acting.python("""
from anthropic import Anthropic

anthropic_client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")

# Step 1: Send request with tools
response = anthropic_client.messages.create(
    model="default",
    max_tokens=1024,
    messages=[{"role": "user", "content": "What's the weather in Paris?"}],
    tools=[{
        "name": "get_weather",
        "description": "Get weather for a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"]
        }
    }]
)

# Step 2: Check if model wants to use tools
for block in response.content:
    if block.type == "tool_use":
        print(f"Tool: {block.name}, Input: {block.input}, ID: {block.id}")
        # response.stop_reason will be "tool_use"

# Step 3: Send tool result back
response = anthropic_client.messages.create(
    model="default",
    max_tokens=1024,
    messages=[
        {"role": "user", "content": "What's the weather in Paris?"},
        {"role": "assistant", "content": response.content},
        {"role": "user", "content": [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": "Sunny, 22C"
            }
        ]}
    ],
    tools=[{
        "name": "get_weather",
        "description": "Get weather for a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"]
        }
    }]
)
print(response.content[0].text)  # "The weather in Paris is sunny, 22C."
""")
    assert "Tool: get_weather, Input: {'city': 'Paris'}" in printed
    assert printed.endswith("The weather in Paris is sunny, 22C.\n")


def test_anthropic_messages_thinking(acting: Reader) -> None:
    """A model that thinks does so through Messages too, unless it is told not to."""
    acting.python("""
from anthropic import Anthropic

anthropic_client = Anthropic(base_url="http://localhost:8000", api_key="not-needed")
reply = anthropic_client.messages.create(
    model="default", max_tokens=256, messages=[{"role": "user", "content": "Hello!"}]
)
quiet = anthropic_client.messages.create(
    model="default", max_tokens=256, thinking={"type": "disabled"}, messages=[{"role": "user", "content": "Hello!"}]
)
""")
    assert [block.type for block in acting.names["reply"].content] == ["thinking", "text"]
    assert [block.type for block in acting.names["quiet"].content] == ["text"]


def test_tool_calling(acting: Reader) -> None:
    printed = acting.python("""
response = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "What's the weather in Paris?"}],
    tools=[{
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get weather for a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"]
            }
        }
    }]
)

if response.choices[0].message.tool_calls:
    for tc in response.choices[0].message.tool_calls:
        print(f"{tc.function.name}: {tc.function.arguments}")
""")
    assert printed == 'get_weather: {"city": "Paris"}\n'


def test_streaming_tool_calls(acting: Reader) -> None:
    printed = acting.python("""
stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "What's 25 * 17?"}],
    tools=[{
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Calculate math expressions",
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {"type": "string"}
                },
                "required": ["expression"]
            }
        }
    }],
    stream=True
)

for chunk in stream:
    if chunk.choices[0].delta.tool_calls:
        for tc in chunk.choices[0].delta.tool_calls:
            print(f"Tool call: {tc.function.name}({tc.function.arguments})")
""")
    assert printed.startswith("Tool call: calculator(")
    assert "25 * 17" in "".join(line.partition("(")[2][:-1] for line in printed.splitlines())


def test_handling_tool_results(acting: Reader) -> None:
    printed = acting.python("""
weather_tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}

def get_weather(city):
    return {"temperature": 22, "condition": "sunny"}

import json

# First request - model decides to call a tool
response = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "What's the weather in Tokyo?"}],
    tools=[weather_tool]
)

# Get the tool call
tool_call = response.choices[0].message.tool_calls[0]
tool_call_id = tool_call.id
function_name = tool_call.function.name
arguments = json.loads(tool_call.function.arguments)

# Execute the function (your implementation)
result = get_weather(**arguments)  # {"temperature": 22, "condition": "sunny"}

# Send result back to model
response = client.chat.completions.create(
    model="default",
    messages=[
        {"role": "user", "content": "What's the weather in Tokyo?"},
        {"role": "assistant", "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": tool_call_id, "content": json.dumps(result)}
    ],
    tools=[weather_tool]
)

print(response.choices[0].message.content)
""")
    assert "sunny" in printed


def test_using_with_openai_sdk_reasoning(acting: Reader) -> None:
    printed = acting.python("""
# Non-streaming
response = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "What are the prime numbers less than 10?"}]
)

message = response.choices[0].message
print("Reasoning:", message.reasoning)  # The thinking process
print("Answer:", message.content)        # The final answer
""")
    assert printed == "Reasoning: Let me analyze this step by step.\nAnswer: The answer is 391.\n"


def test_streaming_with_reasoning(acting: Reader) -> None:
    printed = acting.python("""
reasoning_text = ""
content_text = ""

stream = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "Solve: 2 + 2 = ?"}],
    stream=True
)

for chunk in stream:
    delta = chunk.choices[0].delta
    if hasattr(delta, 'reasoning') and delta.reasoning:
        reasoning_text += delta.reasoning
        print(f"[Thinking] {delta.reasoning}", end="")
    if delta.content:
        content_text += delta.content
        print(delta.content, end="")

print(f"\\n\\nFinal reasoning: {reasoning_text}")
print(f"Final answer: {content_text}")
""")
    assert printed.endswith(
        "Final reasoning: Let me analyze this step by step.\nFinal answer: The answer is 391.\n"
    )


def test_structured_output(acting: Reader) -> None:
    acting.python("""
import json

response = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "List 3 colors"}],
    response_format={
        "type": "json_schema",
        "json_schema": {
            "name": "colors",
            "schema": {
                "type": "object",
                "properties": {
                    "colors": {
                        "type": "array",
                        "items": {"type": "string"}
                    }
                },
                "required": ["colors"]
            }
        }
    }
)
# Output validated against schema
data = json.loads(response.choices[0].message.content)
assert "colors" in data
""")
    acting.python("""
response = client.chat.completions.create(
    model="default",
    messages=[{"role": "user", "content": "List 3 colors"}],
    response_format={"type": "json_object"}
)
""")
    answer = acting.json("""
curl http://localhost:8000/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{
    "model": "default",
    "messages": [{"role": "user", "content": "List 3 colors"}],
    "response_format": {"type": "json_object"}
  }'
""")
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


def test_mcp_status(acting: Reader) -> None:
    status = acting.json("curl http://localhost:8000/v1/mcp/status")
    assert status["servers"][0]["name"] == "filesystem"
    assert status["servers"][0]["error"] is None
    tools = acting.json("curl http://localhost:8000/v1/mcp/tools")
    assert [tool["name"] for tool in tools["tools"]] == ["filesystem__list_directory"]


def test_mcp_of_its_newest_version(acting: Reader) -> None:
    servers = acting.json("curl http://localhost:8000/v1/mcp/servers")["servers"]
    assert [(server["name"], server["state"], server["tools_count"]) for server in servers] == [
        ("filesystem", "connected", 1)
    ]
    executed = acting.json("""
curl http://localhost:8000/v1/mcp/execute -H "Content-Type: application/json" \\
  -d '{"tool_name": "filesystem__list_directory", "arguments": {"path": "/tmp"}}'
""")
    assert (executed["content"], executed["is_error"]) == ("/tmp/file1.txt /tmp/file2.txt", False)


def test_mcp_tool_calling_example(acting: Reader) -> None:
    printed = acting.python("""
import json
import httpx

BASE_URL = "http://localhost:8000"

# 1. Get available tools
tools_response = httpx.get(f"{BASE_URL}/v1/mcp/tools")
tools = tools_response.json()["tools"]

# 2. Send request with tools
response = httpx.post(
    f"{BASE_URL}/v1/chat/completions",
    json={
        "model": "default",
        "messages": [{"role": "user", "content": "List files in /tmp"}],
        "tools": tools,
        "max_tokens": 1024
    }
)

result = response.json()
message = result["choices"][0]["message"]

# 3. Check for tool calls
if message.get("tool_calls"):
    tool_call = message["tool_calls"][0]

    # 4. Execute tool via MCP
    exec_response = httpx.post(
        f"{BASE_URL}/v1/mcp/execute",
        json={
            "server": "filesystem",
            "tool": tool_call["function"]["name"],
            "arguments": json.loads(tool_call["function"]["arguments"])
        }
    )
    tool_result = exec_response.json()

    # 5. Send result back to LLM
    messages = [
        {"role": "user", "content": "List files in /tmp"},
        message,
        {
            "role": "tool",
            "tool_call_id": tool_call["id"],
            "content": json.dumps(tool_result["result"])
        }
    ]

    final_response = httpx.post(
        f"{BASE_URL}/v1/chat/completions",
        json={"model": "default", "messages": messages}
    )
    print(final_response.json()["choices"][0]["message"]["content"])
""")
    assert printed == "The /tmp directory contains 2 files\n"


@pytest.mark.long
def test_warm_prompts(tmp_path: Path) -> None:
    TinyCache(tmp_path).language("mlx-community/Qwen3-4B-4bit")
    folder = tmp_path / ".config" / "vllm-mlx"
    folder.mkdir(parents=True)
    (folder / "agents.json").write_text("""
[
  [{"role": "system", "content": "You are a code assistant... You answer in few words..."}]
]
""")
    typed = f"""vllm-mlx serve mlx-community/Qwen3-4B-4bit \\
  --continuous-batching \\
  --warm-prompts {folder}/agents.json
"""
    with reading(tmp_path, typed, "--cache-block-tokens", "16") as reader:
        assert reader.json("curl http://localhost:8000/v1/status")["cache"]["entry_count"] > 0
        asked = """
curl http://localhost:8000/v1/chat/completions -H "Content-Type: application/json" -d '{"model": "default",
  "messages": [{"role": "system", "content": "You are a code assistant... You answer in few words..."},
               {"role": "user", "content": "Hello!"}], "max_tokens": 2}'
"""
        assert reader.json(asked)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        cleared = reader.json("curl -X DELETE http://localhost:8000/v1/cache/prefix")
        assert cleared["status"] == "cleared"
        assert cleared["rewarm_scheduled"] is True
        assert reader.json(asked)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "warm again"


@pytest.mark.long
def test_multi_model_serving(tmp_path: Path) -> None:
    cache = TinyCache(tmp_path)
    cache.language("org/one")
    home = tmp_path / "ai-models" / "mlx_models"
    home.mkdir(parents=True)
    source = tmp_path / ".cache/huggingface/hub/models--org--one/snapshots/main"
    for name in ("gemma-4-E2B-it-5bit", "gemma-4-31B-it-6bit"):
        shutil.copytree(source, home / name)
    smart = qwen_with_head(home / "Qwen3.5-27B-VLM-MTP-8bit")
    shutil.copy(source / "tokenizer_config.json", smart)
    registry = """
manager:
  memory_budget_gb: 100
  idle_unload_seconds: 300
  contention_policy:
    strategy: wait_then_preempt
    wait_timeout_s: 45
    preempt_after_s: 15

models:
  - name: fast
    path: /Users/david/ai-models/mlx_models/gemma-4-E2B-it-5bit
    preload: true
    continuous_batching: false
    estimated_memory_gb: 4

  - name: smart
    path: /Users/david/ai-models/mlx_models/Qwen3.5-27B-VLM-MTP-8bit
    continuous_batching: true
    enable_mtp: true
    estimated_memory_gb: 36

  - name: vision
    path: /Users/david/ai-models/mlx_models/gemma-4-31B-it-6bit
    mllm: true
    continuous_batching: true
    estimated_memory_gb: 44
"""
    file = tmp_path / "models.yaml"
    file.write_text(registry.replace("/Users/david/ai-models/mlx_models", str(home)))
    with reading(tmp_path, f"vllm-mlx serve --models-config {file} --port 8000") as reader:
        listed = reader.json("curl http://localhost:8000/v1/models")["data"]
        assert [model["id"] for model in listed] == ["fast", "smart", "vision"]
        reader.python("""
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

resp = client.chat.completions.create(
    model="smart",
    messages=[{"role": "user", "content": "Explain speculative decoding."}],
)
""")
        assert reader.names["resp"].model == "smart"
        answer = reader.json("""
curl http://localhost:8000/v1/chat/completions \\
  -H 'Content-Type: application/json' \\
  -d '{
    "model": "fast",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 32
  }'
""")
        assert answer["model"] == "fast"
        missing = reader.bash("""
curl -s http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "other", "messages": [{"role": "user", "content": "hello"}]}'
""")
        assert all(f"{name}" in missing for name in ("fast", "smart", "vision")), (
            "404 lists the configured ids"
        )
