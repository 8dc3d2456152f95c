"""mlx-openai-server: the examples of its README and its notebooks, in their order, under their headings.

The document is that of version 1.8. Where an example needs a model that calls a tool or writes JSON to an end, and
where it paints, a scripted model stands for the example's.
"""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from PIL import Image

from pippin.config.errors import ConfigError
from tests.drop_in.examples import Reader, reading, settings_of, warnings_of
from tests.drop_in.tiny_cache import TinyCache
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.speech.recordings import wav
from tests.soak.models import WHISPER, write_whisper

CODER = "mlx-community/Qwen3-Coder-Next-4bit"
MINI = "mlx-community/all-MiniLM-L6-v2-4bit"
HERE = ("--host", "127.0.0.1")
NOTEBOOK = """
# Import the OpenAI client for API communication
from openai import OpenAI

# Connect to the local MLX Server with OpenAI-compatible API
client = OpenAI(
    base_url="http://localhost:8000/v1",
    api_key="fake-api-key",
)
"""


SCRIPT = {
    "rules": [
        {
            "when": {"tools": ["get_weather"]},
            "say": "<tool_call>\n<function=get_weather>\n<parameter=city>\nTokyo\n</parameter>\n"
            "</function>\n</tool_call>",
        },
        {
            "when": {"tools": ["get_current_weather"]},
            "say": "<tool_call>\n<function=get_current_weather>\n<parameter=location>\nBoston, MA\n</parameter>\n"
            "<parameter=unit>\ncelsius\n</parameter>\n</function>\n</tool_call>",
        },
    ]
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A text model, which calls tools, and paints for the examples of pictures: a scripted one, which can all of that
    as long as no `--model-type lm` makes a language model of it."""
    home = tmp_path_factory.mktemp("lm")
    TinyCache(home).images("org/something-else", "FluxPipeline")
    script = home / "model.script.json"
    script.write_text(json.dumps(SCRIPT))
    typed = """mlx-openai-server launch \\
  --model-path mlx-community/Qwen3-Coder-Next-4bit \\
  --reasoning-parser qwen3_moe \\
  --tool-call-parser qwen3_coder
"""
    here = (*HERE, "--served-model-name", CODER)
    with reading(home, typed, *here, models={CODER: str(script)}, named=NOTEBOOK) as reader:
        yield reader


@pytest.mark.parametrize(
    "typed",
    [
        """mlx-openai-server launch \\
  --model-type lm \\
  --model-path mlx-community/Qwen3-Coder-Next-4bit \\
  --reasoning-parser qwen3_moe \\
  --tool-call-parser qwen3_coder
""",
        "mlx-openai-server launch --model-path Darwin-36B-Opus-mlx-text-only-8bit --reasoning-parser qwen3_moe "
        "--tool-call-parser qwen3_coder --debug --served-model-name Darwin-36B-Opus",
        """mlx-openai-server launch \\
  --model-type whisper \\
  --model-path mlx-community/whisper-large-v3-mlx""",
        """mlx-openai-server launch \\
  --model-type lm \\
  --model-path some/model \\
  --context-length 8192 \\
  --decode-concurrency 4 \\
  --prompt-concurrency 1 \\
  --prefill-step-size 512 \\
  --max-tokens 2048 \\
  --prompt-cache-size 1 \\
  --max-bytes 2147483648 \\
  --kv-bits 4 \\
  --kv-group-size 64 \\
  --quantized-kv-start 0""",
        *(
            f"mlx-openai-server launch --model-type lm --model-path some/model --tool-call-parser {parser} "
            f"--reasoning-parser {parser} --enable-auto-tool-choice"
            for parser in "qwen3 qwen3_5 glm4_moe qwen3_coder qwen3_moe qwen3_next qwen3_vl harmony minimax_m2".split()
        ),
        """mlx-openai-server launch \\
  --model-type lm \\
  --model-path some/model \\
  --chat-template-file /path/to/template.jinja""",
        """mlx-openai-server launch \\
  --model-type lm \\
  --model-path some/model \\
  --draft-model-path some/draft \\
  --num-draft-tokens 4""",
    ],
)
def test_other_starts_are_understood(typed: str) -> None:
    assert warnings_of(typed) == []
    assert settings_of(typed).server.port == 8000


@pytest.mark.parametrize(
    "typed",
    [
        """mlx-openai-server launch \\
  --model-type image-generation \\
  --model-path some/flux \\
  --config-name flux-dev \\
  --quantize 8""",
        """mlx-openai-server launch \\
  --model-type image-edit \\
  --model-path some/flux-edit \\
  --config-name flux-kontext-dev \\
  --quantize 8""",
    ],
)
def test_presets_of_image_models_are_refused_by_name(typed: str) -> None:
    with pytest.raises(ConfigError, match="the model's folder tells which image model it is"):
        settings_of(typed)
    [entry] = settings_of(typed.partition("--config-name")[0].rstrip(" \\\n")).server.models
    assert entry.kind == "images"


def test_start_a_server(text: Reader) -> None:
    health = text.json("curl http://localhost:8000/health")
    assert (health["status"], health["model_id"], health["model_status"]) == ("ok", CODER, "initialized")
    queue = text.json("curl http://localhost:8000/v1/queue/stats")
    assert queue["status"] == "ok"
    parts = queue["queue_stats"]["queue_stats"], queue["queue_stats"]["batch_stats"]
    for part in parts:
        assert (part["running"], part["queue_size"], part["max_queue_size"], part["active_requests"]) == (
            True,
            0,
            100,
            0,
        )
    assert (parts[1]["completion_batch_size"], parts[1]["disabled"]) == (32, False)
    [model] = text.json("curl http://localhost:8000/v1/models")["data"]
    assert (model["id"], model["owned_by"]) == (CODER, "local")


def test_chat(text: Reader) -> None:
    text.python("""
import openai

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

response = client.chat.completions.create(
    model="mlx-community/Qwen3-Coder-Next-4bit",
    messages=[{"role": "user", "content": "Say hello in one sentence."}],
)
print(response.choices[0].message.content)
""")
    assert text.names["response"].choices[0].message.content, "an answer without a thought is content"


def test_responses_api(text: Reader) -> None:
    printed = text.python("""
import openai

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

response = client.responses.create(
    model="local-model",
    input="Write a three sentence story.",
)

for item in response.output:
    if item.type == "message":
        for part in item.content:
            if getattr(part, "text", None):
                print(part.text)
""")
    assert printed
    assert text.names["response"].model == CODER, "the one model answers any name"


def test_responses_notebook_text_input(text: Reader) -> None:
    text.python("""
response = client.responses.create(
  model="mlx-local-model",
  input="Tell me a three sentence bedtime story about a unicorn.",
  stream=True
)

for chunk in response:
  print(chunk)
""")
    assert text.names["chunk"].type in ("response.completed", "response.incomplete")


@pytest.fixture(scope="module")
def multimodal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    home = tmp_path_factory.mktemp("multimodal")
    TinyCache(home).vision("org/gemma-4", family="gemma4_unified")
    (home / "examples" / "images").mkdir(parents=True)
    (home / "examples" / "images" / "password.jpg").write_bytes(picture(48, 32, format="JPEG"))
    (home / "image.jpg").write_bytes(picture(40, 40, format="JPEG"))
    (home / "candy.JPG").write_bytes(picture(40, 40, format="JPEG"))
    (home / "attention.png").write_bytes(picture(40, 40))
    (home / "audio.wav").write_bytes(wav(1.0, 3))
    typed = """mlx-openai-server launch \\
  --model-type multimodal \\
  --model-path org/gemma-4
"""
    web = "https://huggingface.co/datasets/huggingface/documentation-images/resolve/main/p-blog"
    with reading(home, typed, *HERE, web=web, named=NOTEBOOK) as reader:
        yield reader


@pytest.mark.long
def test_vision(multimodal: Reader) -> None:
    multimodal.python("""
import base64
import openai

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

with open("image.jpg", "rb") as f:
    image = base64.b64encode(f.read()).decode("utf-8")

response = client.chat.completions.create(
    model="local-multimodal",
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is in this image?"},
                {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{image}"}},
            ],
        }
    ],
)
print(response.choices[0].message.content)
""")
    assert multimodal.names["response"].model == "org/gemma-4"


@pytest.mark.long
def test_vision_notebook_identification_by_address(multimodal: Reader) -> None:
    multimodal.python("""
candy_image_url = "https://huggingface.co/datasets/huggingface/documentation-images/resolve/main/p-blog/candy.JPG"

# Make a visual question answering API request
response = client.chat.completions.create(
    model="gemma3-27b",
    messages=[
        {
            "role": "system",
            "content": "You are a helpful assistant that can answer questions about an image."
        },
        {
            "role": "user", "content": [
                {
                    "type": "image_url",
                    "image_url": {
                        "url": candy_image_url
                    }
                },
                {
                    "type": "text",
                    "text": "What animal is on the candy?"
                }
            ]
        }
    ],
    max_tokens=1024
)
""")
    assert multimodal.names["response"].usage.completion_tokens <= 1024


@pytest.mark.long
def test_audio_notebook(multimodal: Reader) -> None:
    multimodal.python("""
import base64
with open("audio.wav", "rb") as audio_file:
    audio_base64 = base64.b64encode(audio_file.read()).decode('utf-8')
prompt = "Describe the audio in detail."

response = client.chat.completions.create(
    model="local-multimodal",
    messages=[
        {
            "role": "user",
            "content": [
                {
                    "type": "input_audio",
                    "input_audio": {
                        "data": audio_base64,
                        "format": "wav"
                    }
                },
                {
                    "type": "text",
                    "text": prompt
                }
            ]
        }
    ],
    max_tokens=1024
)
""")
    heard = multimodal.names["response"].usage.prompt_tokens
    multimodal.python("""
deaf = client.chat.completions.create(
    model="local-multimodal", messages=[{"role": "user", "content": prompt}], max_tokens=2)
""")
    assert heard > multimodal.names["deaf"].usage.prompt_tokens, "the sound has tokens"


@pytest.mark.long
def test_responses_notebook_image_input(multimodal: Reader) -> None:
    """`examples/images/password.jpg` is a path: inside `--media-path` alone."""
    for stream in ("", ",\n    stream=True"):
        multimodal.python(f"""
response = client.responses.create(
    model="mlx-local-model",
    input=[
        {{
            "role": "user",
            "content": [
                {{ "type": "input_text", "text": "what is in this image?"}},
                {{
                    "type": "input_image",
                    "image_url": "examples/images/password.jpg",
                    "detail": "low"
                }}
            ]
        }}
    ]{stream}
)

for chunk in response:
  print(chunk)
""")
    assert multimodal.names["chunk"].type in ("response.completed", "response.incomplete")


@pytest.mark.long
def test_embeddings(tmp_path: Path) -> None:
    TinyCache(tmp_path).encoder(MINI)
    typed = f"""mlx-openai-server launch \\
  --model-type embeddings \\
  --model-path {MINI}
"""
    with reading(tmp_path, typed, *HERE) as reader:
        assert (
            reader.python("""
import openai

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

response = client.embeddings.create(
    model="local-embedding-model",
    input=["The quick brown fox jumps over the lazy dog"],
)
print(len(response.data[0].embedding))
""")
            == "32\n"
        )
        reader.python("""
# embedding_examples.ipynb: one text and several, in both formats
several = ["A man is eating food.", "A woman is eating food.", "A cat is eating food."]
found = [
    client.embeddings.create(input=input, model="mlx-community/all-MiniLM-L6-v2-4bit", encoding_format=format).data
    for input in ("A man is eating food.", several)
    for format in ("base64", "float")
]
""")
        assert [len(data) for data in reader.names["found"]] == [1, 1, 3, 3]
        assert isinstance(reader.names["found"][0][0].embedding, str)


@pytest.mark.long
def test_lm_embeddings_notebook(tmp_path: Path) -> None:
    """As in its newest version, a language model embeds where it was started for that."""
    model = "mlx-community/DeepSeek-R1-Distill-Qwen-1.5B-MLX-Q8"
    TinyCache(tmp_path).language(model)
    typed = f"mlx-openai-server launch --model-type embeddings --model-path {model}"
    with reading(tmp_path, typed, *HERE, named=NOTEBOOK) as reader:
        printed = reader.python("""
text_batch = [
    "Machine learning algorithms improve with more data",
    "Natural language processing helps computers understand human language",
    "Computer vision allows machines to interpret visual information"
]

batch_response = client.embeddings.create(
    input=text_batch,
    model="mlx-community/DeepSeek-R1-Distill-Qwen-1.5B-MLX-Q8"
)
# Access all embeddings
embeddings = [item.embedding for item in batch_response.data]
print(f"Number of embeddings generated: {len(embeddings)}")
print(f"Dimensions of each embedding: {len(embeddings[0])}")
""")
    assert printed == "Number of embeddings generated: 3\nDimensions of each embedding: 64\n"


@pytest.mark.long
@pytest.mark.model
def test_transcription_notebook(tmp_path: Path) -> None:
    if not WHISPER.is_dir():
        pytest.fail("Fetch Whisper with `python scripts/fetch_test_models.py`.", pytrace=False)
    write_whisper(TinyCache(tmp_path).place("mlx-community/whisper-tiny"))
    (tmp_path / "audios").mkdir()
    (tmp_path / "audios" / "podcast.wav").write_bytes(wav(2.0, 1))
    typed = "mlx-openai-server launch --model-type whisper --model-path mlx-community/whisper-tiny"
    with reading(tmp_path, typed, *HERE) as reader:
        reader.python(
            NOTEBOOK
            + """
audio_path = "audios/podcast.wav"

with open(audio_path, "rb") as f:
    transcription = client.audio.transcriptions.create(
        file=f,
        model="mlx-community/whisper-tiny",
        language="en",
        response_format="json",
        temperature=0.0,
    )
    print(transcription)

with open(audio_path, "rb") as f:
    stream = client.audio.transcriptions.create(
        file=f,
        model="mlx-community/whisper-tiny",
        language="en",
        response_format="json",
        temperature=0.0,
        stream=True,
    )
    for chunk in stream:
        print(chunk)
"""
        )
        assert isinstance(reader.names["transcription"].text, str)
        assert reader.names["chunk"].type == "transcript.text.done"


CONFIG = """
server:
  host: "0.0.0.0"
  port: 8000
  log_level: INFO

models:
  - model_path: mlx-community/MiniMax-M2.5-4bit
    model_type: lm
    served_model_name: minimax
    tool_call_parser: minimax_m2
    reasoning_parser: minimax_m2

  - model_path: black-forest-labs/FLUX.2-klein-4B
    model_type: image-generation
    served_model_name: flux2-klein-4b
    on_demand: true
    on_demand_idle_timeout: 120
"""


@pytest.mark.long
def test_multi_model_config(tmp_path: Path) -> None:
    """Without `config_name` and `quantize`, which are refused. Flux is not on the disk: it is known, and its download
    is what is missing."""
    TinyCache(tmp_path).language("mlx-community/MiniMax-M2.5-4bit", "org/something-else")
    (tmp_path / "config.yaml").write_text(CONFIG)
    typed = f"mlx-openai-server launch --config {tmp_path}/config.yaml"
    with reading(tmp_path, typed, *HERE, named=NOTEBOOK) as reader:
        assert set(listed(reader)) == {"minimax", "flux2-klein-4b"}
        reader.python("""
answer = client.chat.completions.create(model="minimax", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
""")
        assert reader.names["answer"].model == "minimax"
        with pytest.raises(openai.NotFoundError, match="not downloaded yet"):
            reader.python('client.images.generate(model="flux2-klein-4b", prompt="A cat", size="1024x1024")')
        reader.python("""
answer = client.chat.completions.create(model="org/something-else", messages=[{"role": "user", "content": "Hi"}])
""")
        assert reader.names["answer"].model == "minimax", "the only one that writes; no other of the disk"


PDF_DEMO = """
server:
  host: "127.0.0.1"
  port: 8000

models:
  - model_path: mlx-community/Qwen3-4B-8bit
    model_type: lm
  - model_path: mlx-community/Qwen3-4B-8bit
    model_type: embeddings
    served_model_name: Qwen3-4B-8bit-embeddings
"""


@pytest.mark.long
def test_simple_rag_demo(tmp_path: Path) -> None:
    """The demo has one name for both, which its newest version refuses too.

    Reading PDF and searching are its libraries' part: texts stand for the pages, and NumPy for the index.
    """
    TinyCache(tmp_path).language("mlx-community/Qwen3-4B-8bit")
    (tmp_path / "config.yaml").write_text(PDF_DEMO)
    with reading(
        tmp_path, f"mlx-openai-server launch --config {tmp_path}/config.yaml", named=NOTEBOOK
    ) as reader:
        reader.python("""
import numpy as np

chunks = ["Submit the report.", "Speed up system calls."]
response = client.embeddings.create(input=chunks, model="Qwen3-4B-8bit-embeddings")
embeddings = [np.array(item.embedding).astype('float32') for item in response.data]

query = "What submissions do I need to submit in this lab?"
embedding = client.embeddings.create(input=[query], model="Qwen3-4B-8bit-embeddings").data[0].embedding
scores = np.array(embeddings) @ np.array(embedding).astype('float32')
context = chunks[int(scores.argmax())]

prompt = f\"\"\"You are a helpful assistant. Use the context below to answer the question.
    Context:
    {context}
    Question: {query}
    Answer:\"\"\"
response = client.chat.completions.create(
    model="mlx-community/Qwen3-4B-8bit",
    messages=[{"role": "user", "content": prompt}]
)
""")
        assert reader.names["scores"].shape == (2,)
        assert reader.names["response"].choices[0].finish_reason in ("stop", "length")
        with pytest.raises(openai.BadRequestError, match="Qwen3-4B-8bit-embeddings"):
            reader.python('client.embeddings.create(input=["x"], model="mlx-community/Qwen3-4B-8bit")')


ADDRESS_SCHEMA = {
    "properties": {
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "city": {"type": "string"},
                "state": {"type": "string", "description": "2 letter abbreviation of the state"},
                "zip": {"type": "string", "description": "5 digit zip code"},
            },
            "required": ["street", "city", "state", "zip"],
        }
    },
    "required": ["address"],
    "type": "object",
}


def test_responses_notebook_functions(text: Reader) -> None:
    text.python("""
tools = [
    {
        "type": "function",
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
          "type": "object",
          "properties": {
              "location": {
                  "type": "string",
                  "description": "The city and state, e.g. San Francisco, CA",
              },
              "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
          },
          "required": ["location", "unit"],
        }
    }
]

response = client.responses.create(
  model="mlx-local-model",
  tools=tools,
  input="What is the weather like in Boston today?",
  tool_choice="auto"
)

print(response)

stream = client.responses.create(
  model="mlx-local-model",
  tools=tools,
  input="What is the weather like in Boston today?",
  tool_choice="auto",
  stream=True
)

for chunk in stream:
  print(chunk)
""")
    for response in (text.names["response"], text.names["chunk"].response):
        [call] = response.output
        assert (call.name, json.loads(call.arguments)["location"]) == ("get_current_weather", "Boston, MA")


def test_responses_notebook_structured_outputs(text: Reader) -> None:
    text.python("""
from pydantic import BaseModel

class Address(BaseModel):
    street: str
    city: str
    state: str
    zip: str

response = client.responses.parse(
    model="mlx-local-model",
    input=[
        {
            "role": "system",
            "content": "You are an assistant that can answer questions and help with tasks."
        },
        {"role": "user", "content": "Format: 1 Hacker Wy Menlo Park CA 94025"}
    ],
    text_format=Address,
)

address = response.output_parsed

print(address)
""")
    assert isinstance(text.names["address"].street, str)


def test_structured_outputs_notebook(text: Reader) -> None:
    text.names["schema"] = ADDRESS_SCHEMA
    printed = text.python("""
messages = [{"role": "user", "content": "What is the weather in Tokyo?"}]
tools = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a given city",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city to get the weather for"}}}}}]

# Make the API call
completion = client.chat.completions.create(
    model="mlx-server-model",
    messages=messages,
    tools=tools,
    tool_choice="auto",
    max_tokens = 512
)
[call] = completion.choices[0].message.tool_calls

# Set stream=True in the API call
completion = client.chat.completions.create(
    model="mlx-server-model",
    messages=messages,
    tools=tools,
    tool_choice="auto",
    stream=True
)
for chunk in completion:
    pass

messages = [
    {"role": "system", "content": "Extract the address from the user input into the specified JSON format."},
    {"role": "user", "content": "Please format this address: 1 Hacker Wy Menlo Park CA 94025"}
]
response_format = {"type": "json_schema", "json_schema": {"name": "Address", "schema": schema}}

# Make the API call
completion = client.chat.completions.create(
    model="mlx-server-model",
    messages=messages,
    max_tokens = 512,
    response_format = response_format,
    stream = True
)

# Process the streaming response
for chunk in completion:
    if chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
""")
    assert json.loads(text.names["call"].function.arguments) == {"city": "Tokyo"}
    assert set(json.loads(printed)["address"]) == {"street", "city", "state", "zip"}


def test_images(text: Reader) -> None:
    """A scripted model paints: the pipelines themselves are compared with mlx-vlm in `tests/engines/images`."""
    text.python("""
import base64
from io import BytesIO

import openai
from PIL import Image

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="not-needed")

response = client.images.generate(
    model="local-image-generation-model",
    prompt="A mountain lake at sunset",
    size="1024x1024",
)

image = Image.open(BytesIO(base64.b64decode(response.data[0].b64_json)))
""")
    assert text.names["image"].size == (1024, 1024)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the example closes no file
def test_image_edit_notebook(text: Reader) -> None:
    (text.folder / "images").mkdir()
    (text.folder / "images" / "china.png").write_bytes(picture(64, 48))
    text.python("""
prompt = "make it like a photo in 1800s"

result = client.images.edit(
    model="flux-kontext-dev",
    image=open("images/china.png", "rb"),
    prompt=prompt
)

image_base64 = result.data[0].b64_json
print(f"Image created at: {result.created}")
""")
    image = Image.open(io.BytesIO(base64.b64decode(text.names["image_base64"])))
    assert image.format == "PNG"


def listed(reader: Reader) -> list[str]:
    return [model["id"] for model in reader.json("curl http://localhost:8000/v1/models")["data"]]
