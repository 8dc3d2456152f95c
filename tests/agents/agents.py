"""How each agent is pointed at a server and given one task: what docs/clients.md tells people, as code."""

import json
from pathlib import Path
from typing import Final

from tests.agents.programs import npm_command, python_command, run

REMINDERS: Final = {
    "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "countdown",
    # What it does by itself for newer models than it takes ours for: a message of the role `system`.
    "CLAUDE_CODE_FORCE_MID_CONVERSATION_SYSTEM": "1",
}


def codex(address: str, model: str, home: Path, asked: str, *, again: bool = False) -> str:
    (home / "config.toml").write_text(
        f"""
        model = "{model}"
        model_provider = "pippin"
        model_context_window = 64000
        [model_providers.pippin]
        name = "Pippin"
        base_url = "{address}/v1"
        wire_api = "responses"
        stream_idle_timeout_ms = 900000
        [analytics]
        enabled = false
        """
    )
    command: list[str | Path] = [npm_command("codex"), "exec", *(["resume", "--last"] if again else [])]
    command += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", asked]
    return run(command, home, CODEX_HOME=str(home))


def claude_code(
    address: str, model: str, home: Path, asked: str, *, again: bool = False, reminders: bool = False
) -> str:
    """`reminders`: it tells as the system, after each result of a tool, how many tokens are left."""
    command: list[str | Path] = [npm_command("claude"), *(["--continue"] if again else []), "-p", asked]
    return run(
        [*command, "--allowedTools", "Bash", "--model", model],
        home,
        ANTHROPIC_BASE_URL=address,
        ANTHROPIC_API_KEY="",
        ANTHROPIC_AUTH_TOKEN="none",
        API_TIMEOUT_MS="2000000",
        CLAUDE_STREAM_IDLE_TIMEOUT_MS="2000000",
        DISABLE_TELEMETRY="1",
        DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        CLAUDE_CODE_ATTRIBUTION_HEADER="0",
        **(REMINDERS if reminders else {"CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off"}),
    )


def opencode(address: str, model: str, home: Path, asked: str, *, again: bool = False) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{address}/v1", "timeout": False},
        "models": {model: {"limit": {"context": 64000, "output": 8000}}},
    }
    config = {
        "provider": {"pippin": provider},
        "model": f"pippin/{model}",
        "small_model": f"pippin/{model}",
        "share": "disabled",
        "autoupdate": False,
    }
    command: list[str | Path] = [npm_command("opencode"), "run", *(["--continue"] if again else [])]
    return run(
        [*command, "--auto", asked],
        home,
        OPENCODE_CONFIG_CONTENT=json.dumps(config),
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1",
    )


def aider(address: str, model: str, home: Path, *asked: str, files: tuple[str, ...] = ()) -> str:
    """One session; what is asked is typed line by line."""
    prices = home / ".aider" / "caches" / "model_prices_and_context_window.json"
    prices.parent.mkdir(parents=True, exist_ok=True)
    prices.write_text('{"none": {}}')  # or it asks a host for the prices of hosted models
    known = {"max_input_tokens": 8192, "max_output_tokens": 512, "litellm_provider": "openai", "mode": "chat"}
    (home / ".aider.model.metadata.json").write_text(json.dumps({f"openai/{model}": known}))
    (home / ".aider.model.settings.yml").write_text(f"- name: openai/{model}\n  reminder: none\n")
    command: list[str | Path] = [python_command("aider"), "--model", f"openai/{model}"]
    command += ["--no-git", "--yes-always", "--analytics-disable", "--no-check-update"]
    command += ["--no-show-model-warnings", "--no-show-release-notes", "--no-pretty", "--no-fancy-input"]
    return run(
        [*command, *files],
        home,
        typed="".join(f"{line}\n" for line in (*asked, "/exit")),
        OPENAI_API_BASE=f"{address}/v1",
        OPENAI_API_KEY="none",
    )


def copilot(address: str, model: str, home: Path, asked: str, *, wire: str = "completions") -> str:
    """`wire`: `completions`, `responses`, or `websockets`, which is Responses over a WebSocket."""
    given = {"COPILOT_PROVIDER_WIRE_API": wire}
    if wire == "websockets":
        given = {"COPILOT_PROVIDER_WIRE_API": "responses", "COPILOT_PROVIDER_TRANSPORT": "websockets"}
    return run(
        [npm_command("copilot"), "-p", asked, "--allow-all-tools", "--no-auto-update", "--silent"],
        home,
        COPILOT_PROVIDER_BASE_URL=f"{address}/v1",
        COPILOT_MODEL=model,
        COPILOT_PROVIDER_MAX_PROMPT_TOKENS="56000",
        COPILOT_PROVIDER_MAX_OUTPUT_TOKENS="8000",
        COPILOT_OFFLINE="true",
        **given,
    )


def qwen_code(address: str, model: str, home: Path, asked: str) -> str:
    settings = home / ".qwen" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    private = {"telemetry": {"enabled": False}, "privacy": {"usageStatisticsEnabled": False}}
    settings.write_text(json.dumps({**private, "general": {"enableAutoUpdate": False}}))
    return run(
        [npm_command("qwen"), asked, "--auth-type", "openai", "--model", model, "--yolo"],
        home,
        OPENAI_BASE_URL=f"{address}/v1",
        OPENAI_API_KEY="none",
    )


def gemini_cli(address: str, model: str, home: Path, asked: str) -> str:
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    own = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    settings.write_text(json.dumps(own))
    return run(
        [npm_command("gemini"), "--model", model, "--yolo", "--skip-trust", "--prompt", asked],
        home,
        GOOGLE_GEMINI_BASE_URL=address,
        GEMINI_API_KEY="none",
    )


def continue_cli(address: str, model: str, home: Path, asked: str) -> str:
    config = home / "continue.yaml"
    config.write_text(
        f"""
        name: Pippin
        version: 1.0.0
        schema: v1
        models:
          - name: Chat
            provider: openai
            model: {model}
            apiBase: {address}/v1
            apiKey: none
            roles: [chat]
            capabilities: [tool_use]
        """
    )
    return run(
        [npm_command("cn"), "--config", str(config), "--print", "--auto", asked],
        home,
        CONTINUE_TELEMETRY_ENABLED="0",
    )


def cline(address: str, model: str, home: Path, asked: str) -> str:
    command = npm_command("cline")
    told = ["--provider", "openai", "--apikey", "none", "--modelid", model, "--baseurl", f"{address}/v1"]
    run([command, "auth", *told], home, CLINE_TELEMETRY_DISABLED="1")
    return run([command, "--provider", "openai", "--model", model, asked], home, CLINE_TELEMETRY_DISABLED="1")


def pi(address: str, model: str, home: Path, asked: str) -> str:
    folder = home / "pi"
    folder.mkdir(exist_ok=True)
    provider = {
        "baseUrl": f"{address}/v1",
        "api": "openai-completions",
        "apiKey": "none",
        "models": [{"id": model, "contextWindow": 64000, "maxTokens": 8000}],
    }
    (folder / "models.json").write_text(json.dumps({"providers": {"pippin": provider}}))
    # Without PI_OFFLINE it fetches two programs from GitHub when it starts, and waits for them.
    return run(
        [npm_command("pi"), "--provider", "pippin", "--model", model, "-p", asked],
        home,
        PI_CODING_AGENT_DIR=str(folder),
        PI_OFFLINE="1",
    )
