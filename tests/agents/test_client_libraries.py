"""Libraries and tools over the OpenAI API, each in an environment of its own, against a scripted model."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.programs import node_folder, python_environment, run
from tests.api.scripted_server import scripted_server

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
    {"when": {"user": "."}, "say": "Hello there."},
)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path, *RULES, context_window=64_000) as url:
        yield url


@pytest.mark.parametrize(
    ("script", "packages"),
    [
        ("use_langchain.py", ("langchain-openai==1.7.3",)),
        (
            "use_llama_index.py",
            ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
        ),
        ("use_instructor.py", ("instructor==1.17.0",)),
        ("use_litellm.py", ("litellm==1.106.2",)),
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
        ("use_anthropic.mjs", ("@anthropic-ai/sdk@1.12.0",)),
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
    command = [python_environment("llm", "llm==0.32.1") / "llm", "-m", "pippin"]
    given = {"LLM_USER_PATH": str(settings), "OPENAI_API_KEY": "none"}
    assert run([*command, "Hello"], tmp_path, **given).strip() == "Hello there."
    assert (
        run([*command, "--schema", "name str", "A color, please"], tmp_path, **given).strip()
        == '{"name": "red"}'
    )
