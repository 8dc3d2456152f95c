"""mlx_vlm.server 0.7.10: its flags, its variables, its start, and the settings that it changes at run time."""

from typing import Final

from msgspec.structs import replace

from pippin.config.compat import conversions as to
from pippin.config.compat.terms import QUANTIZED_FROM_THE_START, Server, equivalent, needless, refused, same

DRAFTERS = "those of docs/speculation.md (EAGLE-3, DFlash, prediction heads), in batches; others are refused"
KIND = "found by the drafter's configuration; the load refuses a drafter of another kind than this"
BLOCK = "one less, as a block has the last token too"
UNIFORM = "`uniform` alone: keys and values are scaled in groups; `turboquant` is refused"
PROGRESS = "no such lines unless it is given: progress is live in `GET /v1/status`"
EXPERTS = "of a checkpoint that `mlx_vlm.moe_offload` repacked; any other is refused with it"

FLAGS = (
    same("--host", "host", "0.0.0.0"),
    same("--port", "port", "8080"),
    same("--trust-remote-code", "trust_remote_code", "off", takes="switch"),
    same("--model", "model", "-"),
    same("--image-model", "image_model", "-"),
    same("--tts-model", "tts_model", "-"),
    same("--stt-model", "stt_model", "-"),
    same("--embedding-model", "embedding_model", "-"),
    same("--decision-model", "decision_model", "-"),
    same("--reranker-model", "reranker_model", "-"),
    same("--model-dir", "model_dirs", "-", takes="list"),
    same("--adapter-path", "adapter_path", "-"),
    same("--vision-cache-size", "vision_cache_size", "20"),
    same("--min-pixels", "min_pixels", "-"),
    same("--max-pixels", "max_pixels", "-"),
    same("--prefill-step-size", "prefill_step_size", "2048"),
    same("--log-progress-interval", "log_progress_interval", "10", PROGRESS),
    same("--max-tokens", "max_tokens", "2048"),
    same("--enable-thinking", "enable_thinking", "off", takes="switch"),
    same("--thinking-budget", "thinking_budget", "-"),
    same("--thinking-start-token", "thinking_start_token", "-"),
    same("--thinking-end-token", "thinking_end_token", "-"),
    same("--thinking-eos-token", "thinking_end_token", "-"),
    same(
        "--kv-bits",
        "kv_bits",
        "-",
        "2, 3, 4, 5, 6 and 8; others are refused, and so are halves (3.5), which are TurboQuant's",
        convert=to.kv_bits,
    ),
    same("--kv-key-bits", "kv_key_bits", "-", convert=to.bits_of("kv_key_bits")),
    same("--kv-value-bits", "kv_value_bits", "-", convert=to.bits_of("kv_value_bits")),
    same("--kv-key-scheme", "kv_bits", "-", UNIFORM, convert=to.kv_scheme),
    same("--kv-value-scheme", "kv_bits", "-", UNIFORM, convert=to.kv_scheme),
    same("--kv-quant-scheme", "kv_bits", "uniform", UNIFORM, convert=to.kv_scheme),
    same("--kv-group-size", "kv_group_size", "64"),
    equivalent(
        "--max-kv-size",
        "context_length",
        "-",
        "the window of the model; old tokens are never lost silently",
        to.off_at_zero("context_length"),
    ),
    refused("--quantized-kv-start", "5000", QUANTIZED_FROM_THE_START),
    same("--expert-cache-gb", "expert_cache_gb", "-", EXPERTS),
    same("--draft-model", "draft_model_path", "-", DRAFTERS),
    same("--draft-kind", "draft_kind", "-", KIND),
    equivalent("--draft-block-size", "num_draft_tokens", "-", BLOCK, to.block_of_drafts),
    same("--max-num-seqs", "max_num_seqs", "unbounded", convert=to.sequences),
    needless("--top-logprobs-k", "0", "a request may ask for up to 20 without a setting"),
    same("--api-key", "api_keys", "-"),
    needless(
        "--reload",
        "off",
        "it watches mlx-vlm's own source for its developers; options are read again on SIGHUP",
        "switch",
    ),
    same("--log-level", "log_level", "INFO", convert=to.log_level),
)

BY_BYTES = "the cache is sized in bytes"
SNAPSHOTS = "snapshots of layers that cannot be cut are kept at block borders by themselves"
WRITER = "the disk tier writes in the background and needs no setting"
COUNTED = (
    "hits, misses and evictions are in `GET /v1/cache/stats`, and `cached_tokens` in each answer's usage"
)
LAYOUT = "the layout of the cache needs no threshold"

VARIABLES = (
    same("MLX_VLM_PRELOAD_MODEL", "model", "-"),
    same("MLX_VLM_PRELOAD_ADAPTER", "adapter_path", "-"),
    same("MLX_VLM_PRELOAD_IMAGE_MODEL", "image_model", "-"),
    same("MLX_VLM_PRELOAD_TTS_MODEL", "tts_model", "-"),
    same("MLX_VLM_PRELOAD_STT_MODEL", "stt_model", "-"),
    same("MLX_VLM_PRELOAD_EMBEDDING_MODEL", "embedding_model", "-"),
    same("MLX_VLM_PRELOAD_DECISION_MODEL", "decision_model", "-"),
    same("MLX_VLM_PRELOAD_RERANKER_MODEL", "reranker_model", "-"),
    same("PRELOAD_MODEL", "model", "-"),
    same("PRELOAD_ADAPTER", "adapter_path", "-"),
    same("MLX_VLM_MODEL_PATHS", "model_dirs", "-", convert=to.folders),
    same("MLX_VLM_SERVER_API_KEY", "api_keys", "-"),
    same("MLX_TRUST_REMOTE_CODE", "trust_remote_code", "false"),
    same("MLX_VLM_MAX_TOKENS", "max_tokens", "2048"),
    same("MLX_VLM_MAX_NUM_SEQS", "max_num_seqs", "unbounded", convert=to.sequences),
    equivalent(
        "MLX_VLM_TOKEN_QUEUE_TIMEOUT",
        "queue_timeout",
        "600",
        "the longest wait for the first token's turn; a running answer is not cut by it",
    ),
    same("MLX_VLM_LOG_PROGRESS_INTERVAL", "log_progress_interval", "10", PROGRESS),
    same("MLX_VLM_ENABLE_THINKING", "enable_thinking", "-"),
    same("MLX_VLM_THINKING_BUDGET", "thinking_budget", "-"),
    same("MLX_VLM_THINKING_START_TOKEN", "thinking_start_token", "-"),
    same("MLX_VLM_THINKING_END_TOKEN", "thinking_end_token", "-"),
    same("MLX_VLM_MIN_PIXELS", "min_pixels", "-"),
    same("MLX_VLM_MAX_PIXELS", "max_pixels", "-"),
    same("MLX_VLM_VISION_CACHE_SIZE", "vision_cache_size", "20"),
    same("MLX_VLM_DRAFT_MODEL", "draft_model_path", "-", DRAFTERS),
    same("MLX_VLM_DRAFT_KIND", "draft_kind", "-", KIND),
    equivalent("MLX_VLM_DRAFT_BLOCK_SIZE", "num_draft_tokens", "-", BLOCK, to.block_of_drafts),
    needless("MLX_VLM_SPEC_BATCH_COALESCE_MS", "5", "requests join the batch at any step"),
    needless("MLX_VLM_BATCH_CACHE_EVAL_INTERVAL", "-", "the batch decides when caches are computed"),
    same("MLX_VLM_RESPONSE_STORE_LIMIT", "response_store_entries", "1024"),
    needless("MLX_VLM_RERANK_BATCH_SIZE", "8", "documents are batched by their length"),
    needless(
        "MLX_VLM_COMPACTION_KEY_FILE",
        "-",
        "a compaction is the caller's own and not encrypted; those that mlx-vlm made can't be read",
    ),
    same("PREFILL_STEP_SIZE", "prefill_step_size", "2048"),
    same("KV_BITS", "kv_bits", "off", "as `--kv-bits`", convert=to.kv_bits),
    same("KV_KEY_BITS", "kv_key_bits", "-", convert=to.bits_of("kv_key_bits")),
    same("KV_VALUE_BITS", "kv_value_bits", "-", convert=to.bits_of("kv_value_bits")),
    same("KV_KEY_SCHEME", "kv_bits", "-", UNIFORM, convert=to.kv_scheme),
    same("KV_VALUE_SCHEME", "kv_bits", "-", UNIFORM, convert=to.kv_scheme),
    same("KV_GROUP_SIZE", "kv_group_size", "64"),
    same("KV_QUANT_SCHEME", "kv_bits", "uniform", UNIFORM, convert=to.kv_scheme),
    equivalent(
        "MAX_KV_SIZE", "context_length", "-", "the window of the model", to.off_at_zero("context_length")
    ),
    refused("QUANTIZED_KV_START", "5000", QUANTIZED_FROM_THE_START),
    same("EXPERT_CACHE_GB", "expert_cache_gb", "-", EXPERTS),
    needless("TOP_LOGPROBS_K", "0", "a request may ask for up to 20 without a setting"),
    equivalent(
        "APC_ENABLED",
        "prefix_cache",
        "0",
        "with its tier on disk, in `apc` under `MLX_VLM_CACHE_HOME`, as there: prompts are kept in files, and "
        "`APC_DISK_ENABLED=0` leaves them in memory alone, where Pippin's cache is on by default",
        to.apc_enabled,
    ),
    same(
        "MLX_VLM_CACHE_HOME",
        "cache_dir",
        "~/.cache/mlx-vlm",
        "its folder `apc`; Pippin's other files are under `PIPPIN_HOME`",
        convert=to.apc_home,
        requires="APC_ENABLED",
    ),
    same("APC_BLOCK_SIZE", "cache_block_tokens", "16"),
    needless("APC_NUM_BLOCKS", "2048", BY_BYTES),
    same("APC_MEMORY_MAX_GB", "cache_memory_mb", "auto", convert=to.gibibytes("cache_memory_mb")),
    needless("APC_MEMORY_RESERVE_GB", "auto", "memory is admitted by bytes before a request starts"),
    same("APC_DISK_PATH", "cache_dir", "cache home"),
    equivalent(
        "APC_DISK_ENABLED",
        "cache_dir",
        "1",
        "0 leaves the disk tier off; it is on with `APC_ENABLED`, and where `APC_DISK_PATH` names a folder",
        to.disk_enabled,
    ),
    same("APC_DISK_MAX_GB", "cache_disk_max_gb", "20"),
    needless("APC_DISK_QUEUE_MAX_GB", "1", WRITER),
    needless("APC_DISK_SHARD_MAX_BLOCKS", "256", WRITER),
    needless("APC_DISK_WORKERS", "-", WRITER),
    refused(
        "APC_DISK_NAMESPACE",
        "-",
        "servers that share a folder share what it holds: name another folder, `APC_DISK_PATH`",
    ),
    needless("APC_CHECKPOINT_ENTRIES", "2", SNAPSHOTS),
    needless("APC_CHECKPOINT_INTERVAL_TOKENS", "2048", SNAPSHOTS),
    needless("APC_CHECKPOINT_GUARD_TOKENS", "1", SNAPSHOTS),
    needless("APC_EXACT_MIN_TOKENS", "-", LAYOUT),
    needless("APC_LAYER_MAJOR_MEMORY_MIN_TOKENS", "50000", LAYOUT),
    needless("APC_MAX_POOL_TENSORS", "450000", LAYOUT),
    needless("APC_HASH", "fast", "blocks are compared token by token"),
    needless(
        "APC_DEFAULT_TENANT",
        "-",
        "requests that name no tenant (`X-Tenant-Id`, `cache_salt`) share one part of the cache in any case; one that "
        "names this tenant has its own part",
    ),
    needless("APC_TRACE", "-", COUNTED),
    needless("APC_DEBUG", "-", COUNTED),
    same("HF_HUB_OFFLINE", "offline", "-"),
    same("HF_TOKEN", None, "-", "read by the Hugging Face library, as there"),
)

_BY_NAME = {term.name: term for term in VARIABLES}
_KNOBS = {
    "kv_bits": "KV_BITS",
    "kv_quant_scheme": "KV_QUANT_SCHEME",
    "kv_group_size": "KV_GROUP_SIZE",
    "kv_key_bits": "KV_KEY_BITS",
    "kv_value_bits": "KV_VALUE_BITS",
    "kv_key_scheme": "KV_KEY_SCHEME",
    "kv_value_scheme": "KV_VALUE_SCHEME",
    "quantized_kv_start": "QUANTIZED_KV_START",
    "apc_enabled": "APC_ENABLED",
    "apc_disk_enabled": "APC_DISK_ENABLED",
    "apc_disk_path": "APC_DISK_PATH",
    "apc_block_size": "APC_BLOCK_SIZE",
    "apc_num_blocks": "APC_NUM_BLOCKS",
    "apc_disk_max_gb": "APC_DISK_MAX_GB",
    "apc_memory_max_gb": "APC_MEMORY_MAX_GB",
    "apc_memory_reserve_gb": "APC_MEMORY_RESERVE_GB",
    "apc_disk_queue_max_gb": "APC_DISK_QUEUE_MAX_GB",
    "apc_disk_shard_max_blocks": "APC_DISK_SHARD_MAX_BLOCKS",
    "apc_checkpoint_entries": "APC_CHECKPOINT_ENTRIES",
    "apc_checkpoint_interval_tokens": "APC_CHECKPOINT_INTERVAL_TOKENS",
    "apc_checkpoint_guard_tokens": "APC_CHECKPOINT_GUARD_TOKENS",
    "max_kv_size": "MAX_KV_SIZE",
    "token_queue_timeout": "MLX_VLM_TOKEN_QUEUE_TIMEOUT",
    "draft_model": "MLX_VLM_DRAFT_MODEL",
    "draft_kind": "MLX_VLM_DRAFT_KIND",
    "vision_cache_size": "MLX_VLM_VISION_CACHE_SIZE",
    "min_pixels": "MLX_VLM_MIN_PIXELS",
    "max_pixels": "MLX_VLM_MAX_PIXELS",
}

_LIVE = _BY_NAME | {
    # A setting of a running server does not move the cache's files.
    "APC_ENABLED": same("APC_ENABLED", "prefix_cache", "0", "on by default in Pippin, in memory")
}
SETTINGS = tuple(replace(_LIVE[variable], name=knob) for knob, variable in _KNOBS.items())

SERVER: Final = Server(
    name="mlx-vlm",
    title="mlx_vlm.server",
    command="`python -m mlx_vlm.server --model M` becomes `pippin serve --compat mlx-vlm --model M`",
    flags=FLAGS,
    variables=VARIABLES,
    keys=(),
    settings=SETTINGS,
    profile={
        "host": "0.0.0.0",
        "port": 8080,
        "max_tokens": 2048,
        "overflow": "summarize",
        "open_management": ("/unload", "/cache/reset"),
        "allow_downloads": True,
        "served_only": False,
        "max_models_per_kind": 1,
        "allowed_origins": ("*",),
        "return_documents": False,
    },
)
