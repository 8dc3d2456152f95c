"""mlx-openai-server 1.8.1: its flags, variables and YAML. `pippin launch` implies its profile."""

from typing import Final

from pippin.config.compat import conversions as to
from pippin.config.compat.terms import QUANTIZED_FROM_THE_START, Server, equivalent, needless, refused, same

RESIZED = "images keep their size within `min_pixels` and `max_pixels`"
AS_STORED = (
    "image models run with the bits that they are stored with: leave it out, or fetch one of fewer bits"
)
BY_FOLDER = (
    "the model's folder tells which image model it is: leave it out, and see docs/images.md for the families"
)
NO_LORA = "the pipelines of image models take no LoRA files: merge them into the checkpoint"
TOOL_CHOICE = "tools are honoured wherever the model's template knows them"

FLAGS = (
    same("--config", "config", "-", "read as its `server:` and `models:`"),
    same("--model-path", "model", "-"),
    same("--model-type", "model_kind", "lm", convert=to.model_kind("model_kind")),
    same("--context-length", "context_length", "-", "held for every request"),
    same("--served-model-name", "served_model_name", "the path"),
    same("--port", "port", "8000"),
    same("--host", "host", "0.0.0.0"),
    same("--queue-timeout", "queue_timeout", "300"),
    same("--queue-size", "queue_size", "100"),
    refused("--quantize", "-", AS_STORED),
    refused("--config-name", "-", BY_FOLDER),
    refused("--lora-paths", "-", NO_LORA),
    refused("--lora-scales", "-", NO_LORA),
    needless("--disable-auto-resize", "off", RESIZED, "switch"),
    same("--log-file", "log_file", "logs/app.log", "no file unless one is named"),
    equivalent("--no-log-file", "log_file", "off", "there is none by default", to.no_log_file, "switch"),
    same("--log-level", "log_level", "INFO", convert=to.log_level),
    needless("--enable-auto-tool-choice", "off", TOOL_CHOICE, "switch"),
    same("--tool-call-parser", "tool_call_parser", "-", "its names are known"),
    same("--reasoning-parser", "reasoning_parser", "-", "its names are known"),
    same("--trust-remote-code", "trust_remote_code", "off", takes="switch"),
    same("--chat-template-file", "chat_template_file", "-"),
    equivalent("--debug", "log_level", "off", "sets `debug`", to.debug, "switch"),
    same("--prompt-cache-size", "prompt_cache_size", "10", convert=to.cache_entries),
    same("--max-bytes", "cache_memory_mb", "1<<63", convert=to.max_bytes),
    same("--prompt-cache-max-bytes", "cache_memory_mb", "1<<63", convert=to.max_bytes),
    same("--prompt-cache-dir", "cache_dir", "a temporary folder", "kept over restarts"),
    same("--draft-model-path", "draft_model_path", "-", "in the batch too"),
    same("--num-draft-tokens", "num_draft_tokens", "2"),
    same("--kv-bits", "kv_bits", "-", "in the batch too", convert=to.kv_bits),
    same("--kv-group-size", "kv_group_size", "64"),
    refused("--quantized-kv-start", "0", QUANTIZED_FROM_THE_START),
    same("--decode-concurrency", "max_num_seqs", "32"),
    needless("--prompt-concurrency", "8", "prompts are computed in chunks between decode steps"),
    same("--prefill-step-size", "prefill_step_size", "2048"),
    equivalent(
        "--disable-batching", "max_num_seqs", "off", "one request at a time", to.one_at_a_time, "switch"
    ),
    same("--max-tokens", "max_tokens", "-", convert=to.cap_to_window("max_tokens")),
    same("--temperature", "temperature", "-"),
    same("--top-p", "top_p", "-"),
    same("--top-k", "top_k", "-"),
    same("--min-p", "min_p", "-"),
    same("--repetition-penalty", "repetition_penalty", "-", "0 is off", convert=to.repetition_penalty),
    same("--presence-penalty", "presence_penalty", "-"),
    same("--xtc-probability", "xtc_probability", "-"),
    same("--xtc-threshold", "xtc_threshold", "-"),
    same("--seed", "seed", "-"),
    same("--repetition-context-size", "repetition_context_size", "-"),
    same("--version", None, "-", "prints Pippin's", takes="switch"),
)

VARIABLES = (
    same("DEFAULT_TEMPERATURE", "temperature", "0.7"),
    same("DEFAULT_TOP_P", "top_p", "0.95"),
    same("DEFAULT_TOP_K", "top_k", "20"),
    same("DEFAULT_MIN_P", "min_p", "0.0"),
    same("DEFAULT_MAX_TOKENS", "max_tokens", "1000000", convert=to.cap_to_window("max_tokens")),
    same("DEFAULT_SEED", "seed", "0", "fixed only where it is set"),
    same("DEFAULT_REPETITION_PENALTY", "repetition_penalty", "0.0", convert=to.repetition_penalty),
    same("DEFAULT_REPETITION_CONTEXT_SIZE", "repetition_context_size", "20"),
    same("DEFAULT_PRESENCE_PENALTY", "presence_penalty", "0.0"),
    same("DEFAULT_FREQUENCY_PENALTY", "frequency_penalty", "0.0"),
    same("DEFAULT_XTC_PROBABILITY", "xtc_probability", "0.0"),
    same("DEFAULT_XTC_THRESHOLD", "xtc_threshold", "0.0"),
)

KEYS = (
    same("server.host", "host", "0.0.0.0"),
    same("server.port", "port", "8000"),
    same("server.log_level", "log_level", "INFO", convert=to.log_level),
    same("server.log_file", "log_file", "-"),
    equivalent("server.no_log_file", "log_file", "off", "there is none by default", to.no_log_file),
    same("models[].model_path", "path", "required"),
    same("models[].model_type", "kind", "lm", convert=to.model_kind("kind")),
    same("models[].served_model_name", "name", "the path"),
    same("models[].context_length", "context_length", "-", "held for every request"),
    same("models[].queue_timeout", "queue_timeout", "300"),
    same("models[].queue_size", "queue_size", "100"),
    refused("models[].quantize", "-", AS_STORED),
    refused("models[].config_name", "-", BY_FOLDER),
    refused("models[].lora_paths", "-", NO_LORA),
    refused("models[].lora_scales", "-", NO_LORA),
    equivalent(
        "models[].on_demand",
        "preload",
        "false",
        "loads at the first request, and sets `idle_timeout` to 60",
        to.on_demand,
    ),
    same("models[].on_demand_idle_timeout", "idle_timeout", "60", requires="models[].on_demand"),
    needless("models[].disable_auto_resize", "false", RESIZED),
    needless("models[].enable_auto_tool_choice", "false", TOOL_CHOICE),
    same("models[].tool_call_parser", "tool_call_parser", "-"),
    same("models[].reasoning_parser", "reasoning_parser", "-"),
    needless("models[].message_converter", "-", "messages are shaped as the tool format asks"),
    same("models[].trust_remote_code", "trust_remote_code", "false"),
    same("models[].chat_template_file", "chat_template_file", "-"),
    equivalent(
        "models[].debug", "log_level", "false", "one level for all, `server.log_level`", to.debug_of_one
    ),
    same("models[].prompt_cache_size", "prompt_cache_size", "10", convert=to.cache_entries),
    same("models[].prompt_cache_max_bytes", "cache_memory_mb", "1<<63", convert=to.max_bytes),
    same("models[].prompt_cache_dir", "cache_dir", "a temporary folder"),
    same("models[].draft_model_path", "draft_model_path", "-"),
    same("models[].num_draft_tokens", "num_draft_tokens", "2"),
    same("models[].kv_bits", "kv_bits", "-", convert=to.kv_bits),
    same("models[].kv_group_size", "kv_group_size", "64"),
    refused("models[].quantized_kv_start", "0", QUANTIZED_FROM_THE_START),
    same("models[].batch_completion_size", "max_num_seqs", "32"),
    needless("models[].batch_prefill_size", "8", "prompts are computed in chunks between decode steps"),
    same("models[].batch_prefill_step_size", "prefill_step_size", "2048"),
    equivalent(
        "models[].disable_batching", "max_num_seqs", "false", "one request at a time", to.one_at_a_time
    ),
    same("models[].default_max_tokens", "max_tokens", "-", convert=to.cap_to_window("max_tokens")),
    same("models[].default_temperature", "temperature", "-"),
    same("models[].default_top_p", "top_p", "-"),
    same("models[].default_top_k", "top_k", "-"),
    same("models[].default_min_p", "min_p", "-"),
    same("models[].default_repetition_penalty", "repetition_penalty", "-", convert=to.repetition_penalty),
    same("models[].default_presence_penalty", "presence_penalty", "-"),
    same("models[].default_xtc_probability", "xtc_probability", "-"),
    same("models[].default_xtc_threshold", "xtc_threshold", "-"),
    same("models[].default_seed", "seed", "-"),
    same("models[].default_repetition_context_size", "repetition_context_size", "-"),
)

SERVER: Final = Server(
    name="mlx-openai-server",
    title="mlx-openai-server",
    command="`mlx-openai-server launch ...` becomes `pippin launch ...`",
    flags=FLAGS,
    variables=VARIABLES,
    keys=KEYS,
    profile={
        "host": "0.0.0.0",
        "port": 8000,
        "allowed_origins": ("*",),
        "max_num_seqs": 32,
        "queue_size": 100,
        "queue_timeout": 300.0,
        "prompt_cache_size": 10,
        "num_draft_tokens": 2,
        "allow_downloads": True,
        "served_only": True,
        "any_model_name": True,
        "stream_usage": "always",
    },
    fallbacks={"temperature": 0.7, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
)
