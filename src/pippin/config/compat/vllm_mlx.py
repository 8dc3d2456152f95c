"""vllm-mlx 0.6.0: the flags of `serve`, its variables, the keys of its model registry, and its other commands."""

from typing import Final

from pippin.config.compat import conversions as to
from pippin.config.compat.terms import (
    QUANTIZED_FROM_THE_START,
    KnownModel,
    Server,
    equivalent,
    needless,
    refused,
    same,
)

BATCHED = "requests are always batched continuously"
PAGED = "the prefix cache is always made of shared blocks"
BY_BYTES = "the prefix cache is always sized in bytes"
MTP = "the head in the model's own checkpoint, in the batch too; the load refuses a model without one"
DRAFTER = "EAGLE-3, DFlash and heads for multi-token prediction; the load refuses other kinds by name"
KIND = "found by the drafter's configuration; the load refuses a drafter of another kind than this"
BLOCK = "one less, as a block has the last token too"
MEDIA_CACHE = "features of media are kept by their content, `vision_cache_size` of them"
UNVERIFIED = (
    "tokens that were not verified are never sent; leave it out, and `--enable-mtp` drafts and verifies"
)
SPECPREFILL = (
    "every token of a prompt is computed, and none is left out of what the answer sees; start without it, and prompts "
    "that begin alike are computed once (`prefix_cache`)"
)
TRIE = "all requests share one prefix cache"

FLAGS = (
    same("--models-config", "models_config", "-"),
    same("--memory-budget-gb", "memory_budget_gb", "-"),
    same("--served-model-name", "served_model_name", "the model argument"),
    same("--host", "host", "127.0.0.1"),
    same("--port", "port", "8000"),
    same("--max-num-seqs", "max_num_seqs", "256"),
    needless("--prefill-batch-size", "8", "prompts are computed in chunks between decode steps"),
    needless("--completion-batch-size", "32", "rows decode together up to `max_num_seqs`"),
    same("--mllm-prefill-step-size", "prefill_step_size", "0", convert=to.off_at_zero("prefill_step_size")),
    same("--enable-prefix-cache", "prefix_cache", "on", takes="switch"),
    equivalent(
        "--disable-prefix-cache", "prefix_cache", "off", "sets it off", to.opposite("prefix_cache"), "switch"
    ),
    same("--prefix-cache-size", "prompt_cache_size", "100", convert=to.cache_entries),
    same("--cache-memory-mb", "cache_memory_mb", "-"),
    same("--cache-memory-percent", "cache_memory_percent", "0.2", convert=to.cache_percent),
    needless("--no-memory-aware-cache", "off", BY_BYTES, "switch"),
    equivalent(
        "--kv-cache-quantization",
        "kv_bits",
        "off",
        "sets 8, for live rows too",
        to.set_to("kv_bits", 8),
        "switch",
    ),
    same(
        "--kv-cache-quantization-bits",
        "kv_bits",
        "8",
        convert=to.kv_bits,
        requires="--kv-cache-quantization",
    ),
    same("--kv-cache-quantization-group-size", "kv_group_size", "64"),
    refused("--kv-cache-min-quantize-tokens", "256", QUANTIZED_FROM_THE_START),
    same("--ssd-cache-dir", "cache_dir", "-"),
    same("--ssd-cache-max-gb", "cache_disk_max_gb", "10.0"),
    same("--warm-prompts", "warm_prompts", "-"),
    same("--stream-interval", "stream_interval", "1"),
    equivalent(
        "--max-kv-size",
        "context_length",
        "-",
        "the window of the model; old tokens are never lost silently",
        to.off_at_zero("context_length"),
    ),
    same("--max-tokens", "max_tokens", "32768"),
    same("--max-request-tokens", "max_request_tokens", "32768"),
    needless("--continuous-batching", "off", BATCHED, "switch"),
    equivalent("--gpu-memory-utilization", "memory_percent", "0.9", "the share of memory for all models"),
    needless("--use-paged-cache", "off", PAGED, "switch"),
    same("--paged-cache-block-size", "cache_block_tokens", "64"),
    needless("--max-cache-blocks", "1000", BY_BYTES),
    same("--chunked-prefill-tokens", "prefill_step_size", "0", convert=to.off_at_zero("prefill_step_size")),
    same("--enable-mtp", "mtp", "off", MTP, takes="switch"),
    same("--mtp-num-draft-tokens", "num_draft_tokens", "1", requires="--enable-mtp"),
    refused("--mtp-optimistic", "off", UNVERIFIED, "switch"),
    same("--prefill-step-size", "prefill_step_size", "2048"),
    refused("--specprefill", "off", SPECPREFILL, "switch"),
    refused("--specprefill-threshold", "8192", SPECPREFILL),
    refused("--specprefill-keep-pct", "0.3", SPECPREFILL),
    refused("--specprefill-backbone-pct", "0.0", SPECPREFILL),
    refused("--specprefill-draft-model", "-", SPECPREFILL),
    needless("--prefix-trie-cache", "off", TRIE, "switch"),
    same(
        "--prefix-trie-cache-size",
        "prompt_cache_size",
        "32",
        convert=to.cache_entries,
        requires="--prefix-trie-cache",
    ),
    same("--prefix-trie-cache-memory-mb", "cache_memory_mb", "-", requires="--prefix-trie-cache"),
    same("--mllm-draft-model", "draft_model_path", "-", DRAFTER),
    same("--mllm-draft-kind", "draft_kind", "-", KIND),
    equivalent("--mllm-draft-block-size", "num_draft_tokens", "-", BLOCK, to.block_of_drafts),
    needless(
        "--default-mllm-draft", "off", "with a drafter, every request is drafted for where it pays", "switch"
    ),
    same("--mcp-config", "mcp_config", "-"),
    same("--api-key", "api_keys", "-"),
    same("--rate-limit", "rate_limit", "0"),
    same("--timeout", "timeout", "300.0", convert=to.off_at_zero("timeout")),
    same("--metrics", "enable_metrics", "off", "its README's name for `--enable-metrics`", takes="switch"),
    needless("--enable-mllm-cache", "off", MEDIA_CACHE, takes="switch"),
    needless("--mllm-cache-max-mb", "512", MEDIA_CACHE),
    same("--enable-metrics", "enable_metrics", "off", takes="switch"),
    same("--auto-unload-idle-seconds", "idle_timeout", "0.0", "0 is never", convert=to.idle_seconds),
    same("--lazy-load-model", "lazy_load", "off", takes="switch"),
    same("--max-audio-upload-mb", "max_upload_mb", "25"),
    same("--max-tts-input-chars", "max_speech_chars", "4096"),
    needless(
        "--enable-auto-tool-choice", "off", "tools are honoured wherever the template knows them", "switch"
    ),
    same("--tool-call-parser", "tool_call_parser", "-", "its names are known"),
    same("--reasoning-parser", "reasoning_parser", "-", "its names are known"),
    needless("--mllm", "off", "what a model can do is read from its files", "switch"),
    same("--trust-remote-code", "trust_remote_code", "off", takes="switch"),
    same("--default-temperature", "temperature", "-"),
    same("--default-top-p", "top_p", "-"),
    same("--default-thinking-token-budget", "thinking_budget", "-"),
    same(
        "--default-chat-template-kwargs",
        "chat_template_kwargs",
        "-",
        convert=to.json_object("chat_template_kwargs"),
    ),
    same("--default-top-k", "top_k", "-"),
    same("--default-min-p", "min_p", "-"),
    same("--default-presence-penalty", "presence_penalty", "-"),
    same("--default-repetition-penalty", "repetition_penalty", "-", convert=to.repetition_penalty),
    same("--embedding-model", "embedding_model", "-"),
    same(
        "--embedding-max-length",
        "embedding_max_length",
        "auto",
        convert=to.unless_auto("embedding_max_length"),
    ),
    same("--embedding-overflow-policy", "embedding_overflow", "truncate"),
    same("--rerank-model", "reranker_model", "-"),
    same("--download-timeout", "download_timeout", "300"),
    same("--download-retries", "download_retries", "3"),
    same("--offline", "offline", "off", takes="switch"),
    same("--moe-top-k", "moe_top_k", "-", "in its documents; its code has no such flag"),
)

VARIABLES = (
    same("VLLM_MLX_MCP_CONFIG", "mcp_config", "-"),
    refused(
        "VLLM_MCP_ALLOW_UNSAFE",
        "off",
        "no list of commands is kept, so leave it out; an entry of the MCP file that starts a shell says "
        "`allow_shell: true`",
    ),
    needless("VLLM_MLX_SIMPLE_ENGINE_LOCK_ADMISSION", "fail_fast", "requests wait in a bounded queue"),
    needless("VLLM_MLX_SYSTEM_KV_SLOTS", "4", "system prompts share the prefix cache"),
    same("VLLM_MLX_ENABLE_THINKING", "enable_thinking", "true"),
    equivalent(
        "VLLM_MLX_NO_FINAL_CONTENT_TOKEN_LIMIT",
        "thinking_budget",
        "-",
        "the end of reasoning is forced there",
        to.off_at_zero("thinking_budget"),
    ),
    needless("VLLM_MLX_ENABLE_THINKING_RETIREMENT_RESUME", "-", "the answer goes on after a forced end"),
    needless("MLX_BUFFER_CACHE_LIMIT", "-", "the allocator's cache is bounded by the memory of the model"),
)

KEYS = (
    same("manager.memory_budget_gb", "memory_budget_gb", "auto", convert=to.unless_auto("memory_budget_gb")),
    same("manager.memory_budget", "memory_budget_gb", "auto", convert=to.unless_auto("memory_budget_gb")),
    same("manager.idle_unload_seconds", "idle_timeout", "0", "0 is never", convert=to.idle_seconds),
    same("manager.contention_policy.strategy", "contention_policy", "wait_then_fail"),
    same("manager.contention_policy.wait_timeout_s", "contention_wait", "30"),
    equivalent(
        "manager.contention_policy.preempt_after_s", "contention_wait", "-", "the wait before preemption"
    ),
    same("models[].name", "name", "required"),
    same("models[].path", "path", "required"),
    same("models[].source", "path", "required"),
    same("models[].model", "path", "required"),
    same("models[].preload", "preload", "false"),
    needless("models[].continuous_batching", "-", "requests are always batched continuously"),
    needless("models[].mllm", "-", "what a model can do is read from its files"),
    same("models[].enable_mtp", "mtp", "-", MTP),
    same("models[].prefill_step_size", "prefill_step_size", "-"),
    same("models[].stream_interval", "stream_interval", "-"),
    needless("models[].gpu_memory_utilization", "-", "memory is shared out by the pool"),
    needless("models[].estimated_memory_gb", "-", "the footprint is computed from the files and measured"),
    refused("models[].specprefill", "-", SPECPREFILL),
    refused("models[].specprefill_threshold", "-", SPECPREFILL),
    refused("models[].specprefill_keep_pct", "-", SPECPREFILL),
    refused("models[].specprefill_backbone_pct", "-", SPECPREFILL),
    refused("models[].specprefill_draft_model", "-", SPECPREFILL),
    needless("models[].prefix_trie_cache", "-", TRIE),
    same(
        "models[].prefix_trie_cache_size",
        "prompt_cache_size",
        "-",
        convert=to.cache_entries,
        requires="models[].prefix_trie_cache",
    ),
    same(
        "models[].prefix_trie_cache_memory_mb",
        "cache_memory_mb",
        "-",
        requires="models[].prefix_trie_cache",
    ),
)

IN_FILE = "in the file that `mcp_config` names"
HIGH_RISK = (
    "in the file that `mcp_config` names; there only tools of dangerous names need it, here any that does not look "
    "something up (`get_`, `list_`, `read_` ...): name it here, or in the server's `allowed_tools` (`*`: every tool)"
)
MCP_KEYS = (
    same("servers.{name}.transport", "mcp_config", "stdio", IN_FILE),
    same("servers.{name}.command", "mcp_config", "-", IN_FILE),
    same("servers.{name}.args", "mcp_config", "-", IN_FILE),
    same("servers.{name}.env", "mcp_config", "-", IN_FILE),
    same("servers.{name}.url", "mcp_config", "-", IN_FILE),
    same("servers.{name}.enabled", "mcp_config", "-", IN_FILE),
    same("servers.{name}.timeout", "mcp_config", "30", IN_FILE),
    same("max_tool_calls", "mcp_config", "10", IN_FILE),
    same("default_timeout", "mcp_config", "30", IN_FILE),
    same("allowed_high_risk_tools", "mcp_config", "[]", HIGH_RISK),
)

EMBEDDERS: Final = tuple(
    KnownModel(path=f"mlx-community/{name}", kind="embeddings")
    for name in (
        "all-MiniLM-L6-v2-4bit",
        "embeddinggemma-300m-6bit",
        "bge-large-en-v1.5-4bit",
        "multilingual-e5-small-mlx",
        "multilingual-e5-large-mlx",
        "bert-base-uncased-mlx",
        "ModernBERT-base-mlx",
    )
)
TRANSCRIBERS: Final = tuple(
    KnownModel(name=name, path=f"mlx-community/{folder}", kind="transcription")
    for name, folder in (
        ("whisper-large-v3", "whisper-large-v3-mlx"),
        ("whisper-large-v3-turbo", "whisper-large-v3-turbo"),
        ("whisper-medium", "whisper-medium-mlx"),
        ("whisper-small", "whisper-small-mlx"),
        ("parakeet", "parakeet-tdt-0.6b-v2"),
        ("parakeet-v3", "parakeet-tdt-0.6b-v3"),
    )
)
SPEAKERS: Final = tuple(
    KnownModel(name=name, path=f"mlx-community/{folder}", kind="speech")
    for name, folder in (
        ("kokoro", "Kokoro-82M-bf16"),
        ("kokoro-4bit", "Kokoro-82M-4bit"),
        ("chatterbox", "chatterbox-turbo-fp16"),
        ("chatterbox-4bit", "chatterbox-turbo-4bit"),
        ("vibevoice", "VibeVoice-Realtime-0.5B-4bit"),
        ("voxcpm", "VoxCPM1.5"),
    )
)

SERVER: Final = Server(
    name="vllm-mlx",
    title="vllm-mlx",
    command="`vllm-mlx serve M ...` becomes `pippin serve --compat vllm-mlx M ...`",
    flags=FLAGS,
    variables=VARIABLES,
    keys=KEYS,
    mcp_keys=MCP_KEYS,
    profile={
        "open_management": ("/cache", "/cache/prefix"),
        "host": "127.0.0.1",
        "port": 8000,
        "max_tokens": 32768,
        "max_request_tokens": 32768,
        "enable_thinking": True,
        "max_num_seqs": 256,
        "timeout": 300.0,
        "cache_block_tokens": 64,
        "embedding_overflow": "truncate",
        "max_upload_mb": 25.0,
        "max_speech_chars": 4096,
        "speech_format": "wav",
        "stream_usage": "always",
        "allow_downloads": True,
        "served_only": True,
    },
    fallbacks={"temperature": 0.7, "top_p": 0.9},
    known_models=(*EMBEDDERS, *TRANSCRIBERS, *SPEAKERS),
)
