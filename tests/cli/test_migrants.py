"""Command lines and files as the replaced servers' documents show them."""

import shlex
from pathlib import Path

import pytest

from pippin.cli.arguments import option_parser
from pippin.config.load import load
from pippin.config.options.start import Compat
from pippin.config.settings import Settings
from tests.config.profiles import under


def settings(line: str, compat: Compat | None = None, variables: dict[str, str] | None = None) -> Settings:
    """What `pippin serve` (or `launch`) makes of the words after its verb."""
    parsed = option_parser("pippin serve", "").parse(shlex.split(line))
    return load(under(compat, *parsed.given), variables or {})


MLX_VLM = [
    "--model mlx-community/Qwen2.5-VL-3B-Instruct-4bit --port 8080",
    "--trust-remote-code",
    "--model mlx-community/gemma-3-27b-it-4bit --adapter-path /adapters --host 127.0.0.1",
    "--model m --kv-bits 3 --kv-group-size 64 --max-kv-size 32768",
    "--model m --kv-bits 8 --kv-group-size 64 --quantized-kv-start 0 --prefill-step-size 4096",
    "--model m --kv-key-bits 4 --kv-value-bits 2",
    "--model m --draft-model d --draft-kind dflash --draft-block-size 8",
    "--model m --enable-thinking --thinking-budget 512 --thinking-start-token '<think>' "
    "--thinking-end-token '</think>'",
    "--model m --image-model i --tts-model t --stt-model s --embedding-model e --reranker-model r "
    "--decision-model d",
    "--model-dir /a --model-dir /b --vision-cache-size 50 --min-pixels 3136 --max-pixels 1003520",
    "--model m --api-key secret --log-level DEBUG --reload --top-logprobs-k 20 --max-num-seqs 16",
    "--model m --log-progress-interval 50 --max-tokens 4096",
]

MLX_OPENAI_SERVER = [
    "--model-path mlx-community/Qwen3-4B-4bit --model-type lm",
    "--model-path p --model-type lm --reasoning-parser qwen3 --tool-call-parser qwen3 --enable-auto-tool-choice",
    "--model-path p --model-type multimodal --context-length 8192 --disable-auto-resize --port 8001",
    "--model-type image-generation --model-path f",
    "--model-type image-edit --model-path q",
    "--model-type embeddings --model-path mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ",
    "--model-type whisper --model-path mlx-community/whisper-large-v3-mlx --queue-size 50 --queue-timeout 600",
    "--model-path p --served-model-name local --prompt-cache-size 8 --max-bytes 9223372036854775808 "
    "--prompt-cache-dir /tmp/cache",
    "--model-path p --draft-model-path d --num-draft-tokens 4 --kv-bits 4 --kv-group-size 32 "
    "--quantized-kv-start 0",
    "--model-path p --decode-concurrency 16 --prompt-concurrency 4 --prefill-step-size 1024",
    "--model-path p --disable-batching --debug --no-log-file --log-level DEBUG",
    "--model-path p --max-tokens 100000 --temperature 1.0 --top-p 1.0 --top-k 20 --min-p 0.0 "
    "--repetition-penalty 1.0 --presence-penalty 0 --xtc-probability 0 --xtc-threshold 0.1 --seed 0 "
    "--repetition-context-size 20",
    "--model-path p --chat-template-file /t.jinja --trust-remote-code --log-file /tmp/app.log --host 0.0.0.0",
]

VLLM_MLX = [
    "mlx-community/Llama-3.2-3B-Instruct-4bit --port 8000",
    "mlx-community/Qwen3-0.6B-8bit --continuous-batching --port 8000",
    "m --continuous-batching --use-paged-cache --paged-cache-block-size 64 --max-cache-blocks 1000",
    "m --api-key secret --rate-limit 60 --timeout 120 --enable-metrics",
    "m --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3",
    "m --mcp-config mcp.json --mllm --trust-remote-code --offline",
    "m --cache-memory-mb 2048 --cache-memory-percent 0.3 --no-memory-aware-cache --prefix-cache-size 50",
    "m --kv-cache-quantization --kv-cache-quantization-bits 8 --kv-cache-quantization-group-size 64",
    "m --ssd-cache-dir /ssd --ssd-cache-max-gb 20 --warm-prompts warm.json --stream-interval 2",
    "m --enable-mtp --mtp-num-draft-tokens 1",
    "m --prefix-trie-cache --prefix-trie-cache-size 32 --prefix-trie-cache-memory-mb 512",
    "m --mllm-draft-model d --mllm-draft-kind mtp --mllm-draft-block-size 4 --default-mllm-draft",
    "m --default-temperature 0.6 --default-top-p 0.95 --default-top-k 20 --default-min-p 0 "
    "--default-presence-penalty 0 --default-repetition-penalty 1.0 --default-thinking-token-budget 2048",
    "m --default-chat-template-kwargs '{\"enable_thinking\": false}'",
    "m --embedding-model e --embedding-max-length auto --embedding-overflow-policy error --rerank-model r",
    "m --auto-unload-idle-seconds 300 --lazy-load-model --max-audio-upload-mb 50 --max-tts-input-chars 8192",
    "m --max-num-seqs 128 --prefill-batch-size 8 --completion-batch-size 32 --mllm-prefill-step-size 512",
    "m --chunked-prefill-tokens 2048 --prefill-step-size 4096 --gpu-memory-utilization 0.85 --max-kv-size 8192",
    "m --disable-prefix-cache --download-timeout 600 --download-retries 5 --max-request-tokens 4096",
    "m --served-model-name gpt-4 --host 0.0.0.0 --memory-budget-gb 48 --enable-prefix-cache",
]


PEERS: list[tuple[Compat, str]] = [
    (
        "omlx",
        "--model-dir ~/models --memory-guard safe --hot-cache-max-size 8GB --max-concurrent-requests 16",
    ),
    (
        "omlx",
        "--model-dir ~/models --memory-guard-gb 48 --paged-ssd-cache-dir ~/.omlx/cache --api-key secret",
    ),
    ("omlx", "--model-dir ~/a,~/b --mcp-config mcp.json --paged-ssd-cache-max-size 50GB --no-cache"),
    ("rapid-mlx", "qwen3.5-9b-4bit --port 8000"),
    (
        "rapid-mlx",
        "qwen3.6-35b-4bit --enable-auto-tool-choice --tool-call-parser qwen --reasoning-parser qwen3 --yes",
    ),
    (
        "rapid-mlx",
        "m --cors-origins http://localhost:3000 https://myapp.com --rate-limit 60 --kv-cache-dtype int8",
    ),
    (
        "rapid-mlx",
        "m --host 0.0.0.0 --trusted-hosts localhost 127.0.0.1 --max-request-bytes 16777216 --no-thinking",
    ),
    ("ollama", ""),
    (
        "lm-studio",
        "qwen3-4b-2507 -p 1234 --cors --bind 0.0.0.0 -c 4096 --gpu max --ttl 3600 --identifier mine -y",
    ),
]


@pytest.mark.parametrize(("compat", "line"), PEERS)
def test_command_lines_of_the_peers(compat: Compat, line: str) -> None:
    assert settings(f"{line} --compat {compat}").compat == compat
    settings(line)


@pytest.mark.parametrize("line", MLX_VLM)
def test_command_lines_of_mlx_vlm(line: str) -> None:
    assert settings(f"{line} --compat mlx-vlm").compat == "mlx-vlm"
    settings(line)


@pytest.mark.parametrize("line", MLX_OPENAI_SERVER)
def test_command_lines_of_mlx_openai_server(line: str) -> None:
    assert settings(line, compat="mlx-openai-server").compat == "mlx-openai-server"
    settings(line)


@pytest.mark.parametrize("line", VLLM_MLX)
def test_command_lines_of_vllm_mlx(line: str) -> None:
    assert settings(f"{line} --compat vllm-mlx").server.models[0].path.endswith(("m", "bit"))
    settings(line)


@pytest.mark.parametrize(
    "line", ["--model gemma", "--model qwen --port 1234 --log-level debug", "gemma3n", ""]
)
def test_command_lines_of_mlx_server(line: str) -> None:
    entry, *_ = settings(f"{line} --compat mlx-server").server.models
    assert entry.path


def test_kinds_of_launch_become_kinds_here() -> None:
    [entry] = settings("--model-type whisper --model-path w", compat="mlx-openai-server").server.models
    assert (entry.path, entry.kind) == ("w", "transcription")
    [entry] = settings(MLX_OPENAI_SERVER[3], compat="mlx-openai-server").server.models
    assert (entry.path, entry.kind) == ("f", "images")


def test_models_of_every_kind_are_served_beside_the_main_one() -> None:
    entries = settings(MLX_VLM[8]).server.models
    assert [(entry.path, entry.kind) for entry in entries] == [
        ("m", None),
        ("i", "images"),
        ("t", "speech"),
        ("s", "transcription"),
        ("e", "embeddings"),
        ("r", "reranking"),
        ("d", "decisions"),
    ]


LAUNCH_YAML = """
server:
  host: "0.0.0.0"
  port: 8000
  log_level: INFO
  # log_file: logs/app.log
  # no_log_file: true

models:
  - model_path: mlx-community/GLM-4.7-Flash-8bit
    model_type: lm
    served_model_name: glm-4.7-flash
    enable_auto_tool_choice: true
    tool_call_parser: glm4_moe
    reasoning_parser: glm47_flash
    message_converter: glm4_moe
    batch_completion_size: 16
    batch_prefill_size: 4
    batch_prefill_step_size: 1024
    default_temperature: 0.7
    default_repetition_penalty: 0.0

  - model_path: mlx-community/Qwen3-VL-4B-Instruct-4bit
    model_type: multimodal
    context_length: 8192
    disable_auto_resize: true
    on_demand: true
    on_demand_idle_timeout: 120

  - model_path: black-forest-labs/FLUX.2-klein-4B
    model_type: image-generation
    served_model_name: flux2-klein-4b
    on_demand: true

  - model_path: mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ
    model_type: embeddings
    queue_size: 50
    queue_timeout: 120
"""


def test_the_file_of_launch_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(LAUNCH_YAML)
    launched = settings(f"--config {file}", compat="mlx-openai-server")
    language, vision, images, embeddings = launched.server.models
    assert launched.server.host == "0.0.0.0"
    assert (language.name, language.preload, language.options.max_num_seqs) == ("glm-4.7-flash", True, 16)
    assert language.options.repetition_penalty == 1.0
    assert (language.options.top_p, language.options.top_k) == (None, None), (
        "those of the checkpoint come first"
    )
    assert (language.options.fallbacks.top_p, language.options.fallbacks.top_k) == (0.95, 20)
    assert (vision.kind, vision.preload, vision.options.idle_timeout) == ("language", False, 120)
    assert vision.options.context_length == 8192
    assert (images.kind, images.preload, images.options.idle_timeout) == ("images", False, 60)
    assert (embeddings.kind, embeddings.options.queue_size) == ("embeddings", 50)
    again = settings(f"--config {file} --port 9000")
    assert (again.server.port, len(again.server.models)) == (9000, 4)


REGISTRY_YAML = """
manager:
  memory_budget_gb: 48
  idle_unload_seconds: 900
  contention_policy:
    strategy: wait_then_preempt
    wait_timeout_s: 20
    preempt_after_s: 15
models:
  - name: qwen
    path: mlx-community/Qwen3-8B-4bit
    preload: true
    continuous_batching: true
    prefill_step_size: 1024
    estimated_memory_gb: 6.5
  - name: vision
    source: mlx-community/gemma-3-4b-it-4bit
    mllm: true
    stream_interval: 2
    gpu_memory_utilization: 0.8
  - name: other
    model: /models/other
    enable_mtp: true
    prefix_trie_cache: true
"""


def test_the_registry_of_vllm_mlx_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(REGISTRY_YAML)
    for flag in ("--models-config", "--config"):
        server = settings(f"{flag} {file} --compat vllm-mlx").server
        assert (server.memory_budget_gb, server.contention_policy) == (48, "wait_then_preempt")
        assert server.contention_wait == 15
        assert server.model_defaults.idle_timeout == 900
        assert [(entry.name, entry.path, entry.preload) for entry in server.models if entry.listed] == [
            ("qwen", "mlx-community/Qwen3-8B-4bit", True),
            ("vision", "mlx-community/gemma-3-4b-it-4bit", False),
            ("other", "/models/other", False),
        ]
        assert server.models[0].options.prefill_step_size == 1024
    assert settings(f"--models-config {file} --memory-budget-gb 20").server.memory_budget_gb == 20


def test_the_environment_of_mlx_vlm_is_read() -> None:
    variables = {
        "MLX_VLM_PRELOAD_MODEL": "m",
        "MLX_VLM_PRELOAD_ADAPTER": "/a",
        "MLX_VLM_MODEL_PATHS": "/x:/y",
        "KV_BITS": "3",
        "PREFILL_STEP_SIZE": "512",
        "APC_ENABLED": "0",
        "APC_DISK_PATH": "/cache",
        "APC_MEMORY_MAX_GB": "2",
        "MLX_TRUST_REMOTE_CODE": "true",
    }
    server = settings("", variables=variables).server
    [entry] = server.models
    assert (entry.path, entry.options.adapter_path) == ("m", "/a")
    assert server.model_dirs == ("/x", "/y")
    of = server.model_defaults
    assert (of.kv_bits, of.prefill_step_size, of.prefix_cache, of.cache_dir) == (3, 512, False, "/cache")
    assert (of.cache_memory_mb, of.trust_remote_code) == (2048, True)


def test_the_environment_of_mlx_openai_server_is_read() -> None:
    variables = {"DEFAULT_TEMPERATURE": "0.2", "DEFAULT_MAX_TOKENS": "1000000", "DEFAULT_SEED": "7"}
    of = settings("--model-path m", compat="mlx-openai-server", variables=variables).server.model_defaults
    assert (of.temperature, of.max_tokens, of.seed) == (0.2, None, 7)
