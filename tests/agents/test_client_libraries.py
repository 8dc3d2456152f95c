"""Libraries and tools over the OpenAI API, each in an environment of its own, against a scripted model."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.programs import node_folder, python_environment, run
from tests.api.live_server import MODEL, live_server
from tests.api.scripted_server import scripted_server
from tests.running_server import running_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the libraries

SCRIPTS: Final = Path(__file__).parent / "libraries"
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"when": {"tool_result": "rain"}, "say": "It rains in Oslo."},
    {
        "when": {"user": "weather", "tools": ["weather"]},
        "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}],
    },
    {
        "when": {"user": "color", "tools": ["Color"]},
        "calls": [{"name": "Color", "arguments": {"name": "red"}}],
    },
    {"when": {"user": "color"}, "say": '{"name": "red"}'},
    {
        "when": {"user": "San Francisco", "tools": ["get_weather"]},
        "calls": [{"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}],
    },
    {"when": {"user": "."}, "say": "Hello there."},
)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path, *RULES, context_window=64_000) as url:
        yield url


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("use_langchain.py", ("langchain-openai==1.7.4",)),
        (
            "use_llama_index.py",
            ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
        ),
        ("use_instructor.py", ("instructor==1.17.0",)),
        ("use_litellm.py", ("litellm==1.110.2",)),
        ("use_langgraph.py", ("langchain==1.5.2", "langchain-openai==1.7.4")),
        ("use_openai_agents.py", ("openai-agents==0.24.0",)),
        ("use_pydantic_ai.py", ("pydantic-ai-slim[openai]==2.68.0",)),
        ("use_inspect.py", ("inspect-ai==0.3.285", "openai==3.57.0")),
    ],
)
def test_a_library(script: str, packages: tuple[str, ...], address: str, tmp_path: Path) -> None:
    commands = python_environment(script.removeprefix("use_").removesuffix(".py"), *packages)
    run(
        [commands / "python", SCRIPTS / script, address],
        tmp_path,
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LANGSMITH_TRACING="false",
    )


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("use_anthropic.mjs", ("@anthropic-ai/sdk@1.14.0",)),
        ("use_google_genai.mjs", ("@google/genai@3.3.0",)),
        ("use_ollama.mjs", ("ollama@0.6.4",)),
        ("use_ai_sdk.mjs", ("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7")),
    ],
)
def test_a_javascript_library(script: str, packages: tuple[str, ...], address: str, tmp_path: Path) -> None:
    folder = node_folder(script.removeprefix("use_").removesuffix(".mjs"), *packages)
    shutil.copy(SCRIPTS / script, folder / script)  # modules are looked for from where a script lies
    run(["node", folder / script, address], tmp_path)


def test_llm_on_the_command_line(address: str, tmp_path: Path) -> None:
    settings = tmp_path / "llm"
    settings.mkdir()
    (settings / "extra-openai-models.yaml").write_text(
        f"- model_id: pippin\n  model_name: scripted\n  api_base: {address}/v1\n"
        "  supports_tools: true\n  supports_schema: true\n"
    )
    command = [python_environment("llm", "llm==0.36") / "llm", "-m", "pippin"]
    given = {"LLM_USER_PATH": str(settings), "OPENAI_API_KEY": "none"}
    assert run([*command, "Hello"], tmp_path, **given).strip() == "Hello there."
    assert (
        run([*command, "--schema", "name str", "A color, please"], tmp_path, **given).strip()
        == '{"name": "red"}'
    )


OPEN_RESPONSES: Final = ("openresponses-types==2.4.0", "websockets==17.4", "httpx==0.28.1")


def test_open_responses(tmp_path: Path) -> None:
    commands = python_environment("open_responses", *OPEN_RESPONSES)
    script = {"rules": list(RULES), "context_window": 64_000}
    with live_server(tmp_path, script) as server:  # which speaks over WebSockets too
        passed = run([commands / "python", SCRIPTS / "use_open_responses.py", server, MODEL], tmp_path)
    assert len(passed.splitlines()) == 17


@pytest.mark.model
def test_open_responses_of_a_real_model(demo_model: Path, tmp_path: Path) -> None:
    # The demo model sees nothing and calls no tools unless it has to. Asked to count from 1 to 3, it counts to the end
    # of its window, over HTTP as over a WebSocket, and the suite sets no limit.
    left_out = ["image_input", "tool_calling", "websocket_response"]
    with running_server(tmp_path, str(demo_model), "--temperature", "0") as server:
        commands = python_environment("open_responses", *OPEN_RESPONSES)
        script = [commands / "python", SCRIPTS / "use_open_responses.py", server, "smollm2-135m-instruct"]
        passed = run([*script, *left_out], tmp_path)
    assert len(passed.splitlines()) == 14
