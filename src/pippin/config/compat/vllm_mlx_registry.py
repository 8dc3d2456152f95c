"""vllm-mlx 0.6.0: its variables, the keys of its model registry and its other commands."""

from pippin.config.compat import conversions as to
from pippin.config.compat.terms import equivalent, needless, same, unsupported

NO_SPECPREFILL = "sparse prefill changes answers: every prompt token is computed"
TRIE = "all requests share one prefix cache"

VARIABLES = (
    same("VLLM_MLX_MCP_CONFIG", "mcp_config", "-"),
    unsupported("VLLM_MCP_ALLOW_UNSAFE", "off", "commands are those of the MCP file, without a shell"),
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
    unsupported("models[].enable_mtp", "-", "multi-token prediction heads are not built in"),
    same("models[].prefill_step_size", "prefill_step_size", "-"),
    same("models[].stream_interval", "stream_interval", "-"),
    needless("models[].gpu_memory_utilization", "-", "memory is shared out by the pool"),
    needless("models[].estimated_memory_gb", "-", "the footprint is computed from the files and measured"),
    unsupported("models[].specprefill", "-", NO_SPECPREFILL),
    unsupported("models[].specprefill_threshold", "-", NO_SPECPREFILL),
    unsupported("models[].specprefill_keep_pct", "-", NO_SPECPREFILL),
    unsupported("models[].specprefill_backbone_pct", "-", NO_SPECPREFILL),
    unsupported("models[].specprefill_draft_model", "-", NO_SPECPREFILL),
    needless("models[].prefix_trie_cache", "-", TRIE),
    needless("models[].prefix_trie_cache_size", "-", TRIE),
    needless("models[].prefix_trie_cache_memory_mb", "-", TRIE),
)

IN_FILE = "in the file that `mcp_config` names"
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
    same("allowed_high_risk_tools", "mcp_config", "[]", IN_FILE),
)

OTHER = (
    ("vllm-mlx download MODEL --timeout --retries --mllm", "`pippin pull MODEL`, also as `pippin download`"),
    ("vllm-mlx model inspect MODEL", "`pippin show MODEL`"),
    ("vllm-mlx model acquire MODEL", "`pippin pull MODEL`"),
    ("vllm-mlx model convert, model register, model qualify", "not replaced: keep vllm-mlx or mlx-lm"),
    ("vllm-mlx bench, bench-serve", "`make bench` in the project; `pippin doctor --bench` on a machine"),
    ("vllm-mlx bench-detok, bench-kv-cache", "not replaced: they measure its own parts"),
    ("vllm-mlx-chat, vllm-mlx-text-chat", "not replaced: any chat interface for the OpenAI API"),
    ("~/.config/vllm-mlx/mcp.json", "name it: `--mcp-config ~/.config/vllm-mlx/mcp.json`"),
)
