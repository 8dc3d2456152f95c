"""mlx_lm.server, the reference server of mlx-lm."""

from typing import Final

from pippin.config.compat import conversions as to
from pippin.config.compat.terms import QUANTIZED_FROM_THE_START, Server, needless, refused, same

FLAGS = (
    same("--model", "model", "-"),
    same("--adapter-path", "adapter_path", "-"),
    same("--draft-model", "draft_model_path", "-", "with `--compat mlx-lm`; in the batch too"),
    same("--num-draft-tokens", "num_draft_tokens", "3"),
    same("--host", "host", "127.0.0.1"),
    same("--port", "port", "8080"),
    same("--allowed-origins", "allowed_origins", "*", "none unless they are named", takes="list"),
    same("--trust-remote-code", "trust_remote_code", "off", takes="switch"),
    same("--log-level", "log_level", "INFO", convert=to.log_level),
    refused("--chat-template", "-", "a template is named as a file: `--chat-template-file`"),
    same("--chat-template-args", "chat_template_kwargs", "-"),
    needless("--use-default-chat-template", "off", "the model's template is always used", "switch"),
    refused("--pipeline", "off", "name the machines: `--machines a,b --split pipeline`", "switch"),
    same("--temp", "temperature", "0.0"),
    same("--top-p", "top_p", "1.0"),
    same("--top-k", "top_k", "0"),
    same("--min-p", "min_p", "0.0"),
    same("--max-tokens", "max_tokens", "512"),
    same("--decode-concurrency", "max_num_seqs", "32"),
    needless("--prompt-concurrency", "8", "prompts are computed in chunks between decode steps"),
    same("--prefill-step-size", "prefill_step_size", "2048"),
    same("--prompt-cache-size", "prompt_cache_size", "10", convert=to.cache_entries),
    same("--prompt-cache-bytes", "cache_memory_mb", "-", convert=to.max_bytes),
    same("--kv-bits", "kv_bits", "-", "in the batch too", convert=to.kv_bits),
    same("--kv-group-size", "kv_group_size", "64"),
    refused("--quantized-kv-start", "-", QUANTIZED_FROM_THE_START),
)

SERVER: Final = Server(
    name="mlx-lm",
    title="mlx_lm.server",
    command="`mlx_lm.server --model M` becomes `pippin serve --compat mlx-lm --model M`",
    flags=FLAGS,
    variables=(),
    keys=(),
    profile={"port": 8080, "max_tokens": 512, "temperature": 0.0},
)
