"""Anthropic's own tool loops, which first ask for a thread and go on without one; JavaScript's is in `tests/agents`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic, beta_async_tool, beta_tool
from anthropic.tools import BetaLocalFilesystemMemoryTool
from anthropic.tools.computer import BetaAbstractComputerToolset20260801, BetaToolsetCallContext

from tests.api.scripted_server import scripted_server
from tests.clients import anthropic_of

RULES: tuple[dict[str, Any], ...] = (
    {"when": {"user": "Summary of the conversation"}, "say": "As I said, rain."},
    {"when": {"user": "Summarize"}, "say": "It rains in Oslo."},
    {"when": {"tool_result": "note.txt"}, "say": "There is a note."},
    {
        "when": {"tool_result": "File created"},
        "calls": [{"name": "memory", "arguments": {"command": "view", "path": "/memories"}}],
    },
    {"when": {"tool_result": "rain"}, "say": "It rains in Oslo."},
    {"when": {"tool_result": "."}, "say": "Done."},
    {
        "when": {"user": "remember", "tools": ["memory"]},
        "calls": [
            {
                "name": "memory",
                "arguments": {"command": "create", "path": "/memories/note.txt", "file_text": "Oslo"},
            }
        ],
    },
    {
        "when": {"user": "press", "tools": ["computer__key"]},
        "calls": [{"name": "computer__key", "arguments": {"text": "Return"}}],
    },
    {"when": {"user": "weather"}, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
)
ASKED: Any = {
    "model": "scripted",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "What is the weather?"}],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("scripted")
    with scripted_server(folder, *RULES) as url:
        yield url


@beta_tool
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"rain in {city}"


def test_a_tool_runner_runs_to_the_end(address: str) -> None:
    with anthropic_of(address) as client:
        last = client.beta.messages.tool_runner(**ASKED, tools=[weather]).until_done()
    assert last.content[0].text == "It rains in Oslo."


def test_a_streamed_tool_runner_runs_to_the_end(address: str) -> None:
    with anthropic_of(address) as client:
        runner = client.beta.messages.tool_runner(**ASKED, tools=[weather], stream=True)
        messages = [stream.get_final_message() for stream in runner]
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert messages[-1].content[0].text == "It rains in Oslo."


def test_an_asynchronous_tool_runner_runs_to_the_end(address: str) -> None:
    @beta_async_tool
    async def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"rain in {city}"

    async def main() -> str:
        async with AsyncAnthropic(base_url=address, api_key="x") as client:
            last = await client.beta.messages.tool_runner(**ASKED, tools=[weather]).until_done()
        return str(last.content[0].text)

    assert asyncio.run(main()) == "It rains in Oslo."


def test_the_vendors_memory_runs_in_its_own_loop(address: str, tmp_path: Path) -> None:
    memory = BetaLocalFilesystemMemoryTool(base_path=str(tmp_path))
    asked = ASKED | {"messages": [{"role": "user", "content": "remember Oslo"}]}
    with anthropic_of(address) as client:
        last = client.beta.messages.tool_runner(**asked, tools=[memory]).until_done()
    assert last.content[0].text == "There is a note."
    assert (tmp_path / "memories" / "note.txt").read_text() == "Oslo"


class Desktop(BetaAbstractComputerToolset20260801):
    """A desktop that has keys alone."""

    def key(self, context: BetaToolsetCallContext, input: Any) -> None:
        pressed.append(input.text)


pressed: list[str] = []


def test_the_vendors_computer_runs_in_its_own_loop(address: str) -> None:
    asked = ASKED | {"messages": [{"role": "user", "content": "press the key"}]}
    desktop = Desktop(confirm=lambda context: True)
    with anthropic_of(address) as client:
        last = client.beta.messages.tool_runner(**asked, tools=[desktop]).until_done()
    assert last.content[0].text == "Done."
    assert pressed == ["Return"]


def test_a_tool_runner_that_compacts_goes_on_from_the_summary(address: str) -> None:
    with anthropic_of(address) as client:
        runner = client.beta.messages.tool_runner(**ASKED, tools=[weather])
        messages = []
        for message in runner:
            if not messages:
                runner.compact_before_next_turn()
            messages.append(message)
    assert [message.stop_reason for message in messages] == ["tool_use", "compaction", "end_turn"]
    assert messages[1].content[0].content == "It rains in Oslo."
    assert messages[2].content[0].text == "As I said, rain."
