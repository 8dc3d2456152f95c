"""mlx_vlm.server 0.7.10: its flags and how it starts. Its variables are in `mlx_vlm_variables`."""

from typing import Final

from pippin.config.compat import conversions as to
from pippin.config.compat.mlx_vlm_variables import SETTINGS, VARIABLES
from pippin.config.compat.terms import Server, equivalent, needless, same, unsupported

DRAFTERS = (
    "its DFlash, EAGLE-3 and MTP drafters are not built in; speculation here takes a plain smaller model "
    "(`draft_model_path`) or the text so far (`prompt_lookup`)"
)
ONE_SCHEME = "keys and values are stored alike, in the uniform scheme: set `kv_bits`"
DECISIONS = "there is no decisions endpoint; a language model with a `choice` output does the same"

FLAGS = (
    same("--host", "host", "0.0.0.0"),
    same("--port", "port", "8080"),
    same("--trust-remote-code", "trust_remote_code", "off", takes="switch"),
    same("--model", "model", "-"),
    same("--image-model", "image_model", "-"),
    same("--tts-model", "tts_model", "-"),
    same("--stt-model", "stt_model", "-"),
    same("--embedding-model", "embedding_model", "-"),
    unsupported("--decision-model", "-", DECISIONS),
    same("--reranker-model", "reranker_model", "-"),
    same("--model-dir", "model_dirs", "-", takes="list"),
    same("--adapter-path", "adapter_path", "-"),
    same("--vision-cache-size", "vision_cache_size", "20"),
    same("--min-pixels", "min_pixels", "-"),
    same("--max-pixels", "max_pixels", "-"),
    same("--prefill-step-size", "prefill_step_size", "2048"),
    needless("--log-progress-interval", "10", "progress of every request is live in `GET /v1/status`"),
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
        "4 and 8 as they are; another number (3.5) takes 4 or 8 with a warning",
        convert=to.kv_bits,
    ),
    unsupported("--kv-key-bits", "-", ONE_SCHEME),
    unsupported("--kv-value-bits", "-", ONE_SCHEME),
    equivalent("--kv-key-scheme", "kv_bits", "-", "`turboquant` warns and is uniform", to.kv_scheme),
    equivalent("--kv-value-scheme", "kv_bits", "-", "`turboquant` warns and is uniform", to.kv_scheme),
    equivalent("--kv-quant-scheme", "kv_bits", "uniform", "`turboquant` warns and is uniform", to.kv_scheme),
    same("--kv-group-size", "kv_group_size", "64"),
    equivalent(
        "--max-kv-size",
        "context_length",
        "-",
        "the window of the model; old tokens are never lost silently",
        to.off_at_zero("context_length"),
    ),
    same("--quantized-kv-start", "quantized_kv_start", "5000"),
    unsupported("--expert-cache-gb", "-", "experts are not offloaded: the whole model is in memory"),
    unsupported("--draft-model", "-", DRAFTERS),
    unsupported("--draft-kind", "-", DRAFTERS),
    unsupported("--draft-block-size", "-", DRAFTERS),
    same("--max-num-seqs", "max_num_seqs", "unbounded", convert=to.off_at_zero("max_num_seqs")),
    needless("--top-logprobs-k", "0", "a request may ask for up to 20 without a setting"),
    same("--api-key", "api_keys", "-"),
    needless("--reload", "off", "options that can change are read again on SIGHUP", "switch"),
    same("--log-level", "log_level", "INFO", convert=to.log_level),
)

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
        "quantized_kv_start": 5000,
        "overflow": "summarize",
        "open_management": ("/unload", "/cache/reset"),
    },
    profile_notes=(
        "Sampling is the checkpoint's own where it says so, as there.",
        "A seed is never fixed by default: its 0 made sampled answers repeat.",
        "Several models may be resident; `--max-models 1` gives one at a time.",
    ),
    differences=(
        ("POST /v1/decisions", DECISIONS),
        ("WS /v1/realtime", "not there: `/v1/audio/transcriptions` and `/v1/audio/speech` stream over HTTP"),
        ("GET /images/defaults", "not there: what a request leaves out is the model's own"),
        ("GET /v1/moe-offload/stats", "not there: experts are not offloaded"),
        ("GET /metrics", "Prometheus text, with `--enable-metrics`; figures as JSON are in `/v1/status`"),
        ("output_path, response_format: path", "no files are written: pictures come as `b64_json` or `url`"),
        ("PATCH /v1/settings with op: replace", "only `merge`"),
    ),
    other=(
        ("mlx_vlm.generate, mlx_vlm.chat, mlx_vlm.chat_ui", "not replaced: any client of the server does it"),
        ("mlx_vlm.convert, mlx_vlm.train, mlx_vlm.moe_offload, mlx_vlm.decide", "not replaced: keep mlx-vlm"),
    ),
)
