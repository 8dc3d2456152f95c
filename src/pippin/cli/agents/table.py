"""Every agent that `pippin agent` knows, as data.

Texts may contain `{address}` (without `/v1`), `{model}`, `{window}` and `{output}` (tokens), `{key}` and `{folder}`
(the agent's folder inside Pippin's); nothing else is replaced. A value in a file that is only `{window}` or `{output}`
becomes a number.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

FileFormat = Literal["json", "yaml", "toml", "text"]

PATIENCE_MS: Final = "2000000"  # milliseconds that an agent may wait for a long prompt


@dataclass(frozen=True)
class File:
    """A file that an agent reads, in its folder inside Pippin's. `content` is a tree, or plain text."""

    name: str
    format: FileFormat
    content: Any


@dataclass(frozen=True)
class Agent:
    """One agent: how to install it, and how to point it at a server without touching the user's files."""

    command: str
    install: str
    window: int  # tokens; in a smaller window, its first prompts leave no room to work
    variables: dict[str, str]
    arguments: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    tools: bool = True  # whether it needs a model that calls tools
    unset: tuple[str, ...] = ()  # the user's variables that would point it elsewhere
    notes: tuple[str, ...] = field(default=())


_CLAUDE: Final = Agent(
    command="claude",
    install="npm install -g @anthropic-ai/claude-code",
    window=32_000,
    variables={
        "ANTHROPIC_BASE_URL": "{address}",
        "ANTHROPIC_AUTH_TOKEN": "{key}",
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
        "API_TIMEOUT_MS": PATIENCE_MS,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": PATIENCE_MS,
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "{window}",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{output}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Both features change the prompt near its start in each turn, so the prefix cache would not be hit after that.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    },
    unset=("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
)

_CODEX: Final = Agent(
    command="codex",
    install="npm install -g @openai/codex",
    window=16_000,
    variables={"CODEX_HOME": "{folder}", "PIPPIN_API_KEY": "{key}"},
    files=(
        File(
            "config.toml",
            "toml",
            {
                "model": "{model}",
                "model_provider": "pippin",
                "model_context_window": "{window}",
                "model_providers": {
                    "pippin": {
                        "name": "Pippin",
                        "base_url": "{address}/v1",
                        "wire_api": "responses",
                        "env_key": "PIPPIN_API_KEY",
                        "stream_idle_timeout_ms": int(PATIENCE_MS),
                    }
                },
                "analytics": {"enabled": False},
            },
        ),
    ),
    notes=(
        "Its sessions and history lie in Pippin's folder too: `pippin agent codex -- resume` finds them.",
    ),
)

_OPENCODE: Final = Agent(
    command="opencode",
    install="npm install -g opencode-ai",
    window=16_000,
    variables={
        "OPENCODE_CONFIG": "{folder}/opencode.json",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "PIPPIN_API_KEY": "{key}",
    },
    files=(
        File(
            "opencode.json",
            "json",
            {
                "$schema": "https://opencode.ai/config.json",
                "provider": {
                    "pippin": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "Pippin",
                        "options": {
                            "baseURL": "{address}/v1",
                            "apiKey": "{env:PIPPIN_API_KEY}",
                            "timeout": False,
                        },
                        "models": {"{model}": {"limit": {"context": "{window}", "output": "{output}"}}},
                    }
                },
                "model": "pippin/{model}",
                "small_model": "pippin/{model}",
                "share": "disabled",
                "autoupdate": False,
            },
        ),
    ),
)

_AIDER: Final = Agent(
    command="aider",
    install="uv tool install aider-chat",
    window=8_000,
    variables={"OPENAI_API_BASE": "{address}/v1", "OPENAI_API_KEY": "{key}"},
    arguments=(
        "--model",
        "openai/{model}",
        "--model-metadata-file",
        "{folder}/metadata.json",
        "--model-settings-file",
        "{folder}/settings.yml",
        "--timeout",
        "2000",
        "--no-analytics",  # `--analytics-disable` would write one of the user's files
        "--no-show-release-notes",
        "--no-check-update",
        "--no-show-model-warnings",
    ),
    files=(
        File(
            "metadata.json",
            "json",
            {
                "openai/{model}": {
                    "max_input_tokens": "{window}",
                    "max_output_tokens": "{output}",
                    "litellm_provider": "openai",
                    "mode": "chat",
                }
            },
        ),
        # Otherwise the rules move after the last question in each turn, and prompts differ from the first question on.
        File("settings.yml", "yaml", [{"name": "openai/{model}", "reminder": "none"}]),
    ),
    tools=False,
)

_QWEN: Final = Agent(
    command="qwen",
    install="npm install -g @qwen-code/qwen-code",
    window=24_000,
    variables={
        "OPENAI_BASE_URL": "{address}/v1",
        "OPENAI_API_KEY": "{key}",
        "OPENAI_MODEL": "{model}",
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": "{folder}/settings.json",
    },
    arguments=("--auth-type", "openai", "--model", "{model}"),
    files=(
        File(
            "settings.json",
            "json",
            {
                "model": {
                    "generationConfig": {
                        "timeout": int(PATIENCE_MS),
                        "contextWindowSize": "{window}",
                        "samplingParams": {"max_tokens": "{output}"},
                    }
                },
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False},
            },
        ),
    ),
)

_COPILOT: Final = Agent(
    command="copilot",
    install="npm install -g @github/copilot",
    window=32_000,
    variables={
        "COPILOT_PROVIDER_BASE_URL": "{address}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "{key}",
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "{window}",
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "{output}",
        "COPILOT_MODEL": "{model}",
        "COPILOT_OFFLINE": "true",
    },
)

_CLINE: Final = Agent(
    command="cline",
    install="npm install -g cline",
    window=16_000,
    variables={},
    arguments=("--data-dir", "{folder}", "--provider", "openai-compatible", "--model", "{model}"),
    files=(
        File(
            "settings/providers.json",
            "json",
            {
                "version": 1,
                "lastUsedProvider": "openai-compatible",
                "modes": {},
                "providers": {
                    "openai-compatible": {
                        "settings": {
                            "provider": "openai-compatible",
                            "apiKey": "{key}",
                            "model": "{model}",
                            "baseUrl": "{address}/v1",
                        },
                        "updatedAt": "2026-01-01T00:00:00.000Z",
                        "tokenSource": "manual",
                    }
                },
            },
        ),
    ),
)

_CONTINUE: Final = Agent(
    command="cn",
    install="npm install -g @continuedev/cli",
    window=16_000,
    variables={"CONTINUE_GLOBAL_DIR": "{folder}", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"},
    arguments=("--config", "{folder}/pippin.yaml"),
    files=(
        File(
            "pippin.yaml",
            "yaml",
            {
                "name": "Pippin",
                "version": "1.0.0",
                "schema": "v1",
                "models": [
                    {
                        "name": "{model}",
                        "provider": "openai",
                        "model": "{model}",
                        "apiBase": "{address}/v1",
                        "apiKey": "{key}",
                        "roles": ["chat", "edit", "apply"],
                        "capabilities": ["tool_use"],
                        "defaultCompletionOptions": {"contextLength": "{window}", "maxTokens": "{output}"},
                    }
                ],
            },
        ),
    ),
)

_CRUSH: Final = Agent(
    command="crush",
    install="npm install -g @charmland/crush",
    window=16_000,
    variables={
        "CRUSH_GLOBAL_CONFIG": "{folder}",
        "CRUSH_GLOBAL_DATA": "{folder}/data",
        "CRUSH_DISABLE_METRICS": "1",
        "CRUSH_DISABLE_PROVIDER_AUTO_UPDATE": "1",
        "PIPPIN_API_KEY": "{key}",
    },
    files=(
        File(
            "crush.json",
            "json",
            {
                "$schema": "https://charm.land/crush.json",
                "providers": {
                    "pippin": {
                        "name": "Pippin",
                        "type": "openai-compat",
                        "base_url": "{address}/v1",
                        "api_key": "$PIPPIN_API_KEY",
                        "models": [
                            {
                                "id": "{model}",
                                "name": "{model}",
                                "context_window": "{window}",
                                "default_max_tokens": "{output}",
                            }
                        ],
                    }
                },
                "models": {
                    "large": {"provider": "pippin", "model": "{model}"},
                    "small": {"provider": "pippin", "model": "{model}"},
                },
            },
        ),
    ),
)

_PI: Final = Agent(
    command="pi",
    install="npm install -g @mariozechner/pi-coding-agent",
    window=8_000,
    variables={"PI_CODING_AGENT_DIR": "{folder}", "PIPPIN_API_KEY": "{key}", "PI_OFFLINE": "1"},
    arguments=("--provider", "pippin", "--model", "{model}"),
    files=(
        File(
            "models.json",
            "json",
            {
                "providers": {
                    "pippin": {
                        "baseUrl": "{address}/v1",
                        "api": "openai-completions",
                        "apiKey": "PIPPIN_API_KEY",
                        "models": [{"id": "{model}", "contextWindow": "{window}", "maxTokens": "{output}"}],
                    }
                }
            },
        ),
    ),
)

AGENTS: Final[dict[str, Agent]] = {
    "claude": _CLAUDE,
    "codex": _CODEX,
    "opencode": _OPENCODE,
    "aider": _AIDER,
    "qwen": _QWEN,
    "copilot": _COPILOT,
    "cline": _CLINE,
    "continue": _CONTINUE,
    "crush": _CRUSH,
    "pi": _PI,
}
