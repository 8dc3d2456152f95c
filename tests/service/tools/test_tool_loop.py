"""A model that uses tools of a real MCP server, over a real socket, in three dialects."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from pippin.config.mcp_file import McpServer, McpSettings
from pippin.core.completion import collect
from pippin.core.conversation import Text, ToolCall, ToolResult
from pippin.core.events import Accepted, Event, Finished, PartDelta, PartEnded, PartStarted
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.mcp.connection import Connection, RemoteTool
from pippin.mcp.tools import CallResult, OfferedTool, ToolServers
from pippin.service.tools.loop import ToolLoop
from tests.api.live_server import MODEL, live_server
from tests.mcp.test_servers import EXAMPLE

ADD = {"name": "demo__add", "arguments": {"a": 19, "b": 23}}
LONG = {"name": "demo__long", "arguments": {"size": 1}}
CLIENTS = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
DEMO = {"type": "mcp", "server_label": "demo"}
SCRIPT = {
    "rules": [
        {"when": {"tool_result": "42"}, "think": "so it is", "say": "The sum is 42."},
        {"when": {"tool_result": "limit of tool calls"}, "say": "I must stop."},
        {"when": {"tool_result": "no result within"}, "say": "It takes too long."},
        {"when": {"tool_result": "Error executing"}, "say": "The tool is broken."},
        {
            "when": {"user": "sum", "tools": ["demo__add"]},
            "think": "a tool",
            "say": "Let me see.",
            "calls": [ADD],
        },
        {"when": {"user": "sum"}, "say": "I have no tool."},
        {"when": {"user": "both"}, "calls": [ADD, {"name": "mine", "arguments": {}}]},
        {"when": {"user": "broken"}, "calls": [{"name": "demo__fail", "arguments": {}}]},
        {"when": {"user": "slow"}, "calls": [{"name": "demo__sleep", "arguments": {"seconds": 30}}]},
        {
            "when": {"user": "forever", "tools": ["demo__long"]},
            "calls": [LONG],
        },
        {
            "when": {"tool_result": "x", "tools": ["demo__long"]},
            "calls": [LONG],
        },
        {"when": {"tool_result": "x"}, "say": "Enough."},
    ]
}


TOOLS = ["add", "ask", "environment", "sleep", "fail", "long", "die"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    servers = {
        "demo": {"command": sys.executable, "args": [EXAMPLE], "timeout": 8, "allowed_tools": TOOLS},
        "broken": {"command": "/nonexistent"},
    }
    path.write_text(json.dumps({"mcpServers": servers, "max_tool_calls": 3}))
    return str(path)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, config: str) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), SCRIPT, mcp_config=config) as address:
        until_connected(address)
        yield address


def until_connected(address: str) -> None:
    deadline = time.monotonic() + 60
    while not httpx.get(f"{address}/v1/mcp/tools", timeout=30).json()["count"]:
        assert time.monotonic() < deadline, "the MCP server did not connect"
        time.sleep(0.05)


def chat(address: str, user: str, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": user}]} | fields
    reply = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_chat_that_asks_for_a_server_gets_an_answer_made_with_its_tools(address: str) -> None:
    answer = chat(address, "sum", tools=[DEMO])
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Let me see.The sum is 42."
    assert not choice["message"].get("tool_calls")
    assert answer["usage"]["prompt_tokens"] > chat(address, "sum")["usage"]["prompt_tokens"]


def test_a_stream_is_the_same_answer(address: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "sum"}], "tools": [DEMO], "stream": True}
    text = ""
    reasons = []
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=30) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line[6:])["choices"]
                assert not choice["delta"].get("tool_calls")
                text += choice["delta"].get("content") or ""
                reasons.append(choice["finish_reason"])
    assert text == "Let me see.The sum is 42."
    assert reasons[-1] == "stop"
    assert reasons.count(None) == len(reasons) - 1


def test_what_comes_together_with_the_end_of_a_round_does_not_end_the_answer() -> None:
    """A slow reader finds the text and the end of a round in one batch."""

    async def main() -> None:
        say = [PartStarted(0, 0, "text"), PartDelta(0, 0, "One."), PartEnded(0, 0)]
        call = [PartStarted(0, 1, "tool_call", "c1", "x__y"), PartDelta(0, 1, "{}"), PartEnded(0, 1)]
        service = PlayedRounds([*say, *call, Finished(0, "tool_calls")], [*say, Finished(0, "stop")])
        request = GenerationRequest(model="m", messages=())
        loop = ToolLoop(service, ToolServers(McpSettings()), offered(), request, "m", "id", None)  # type: ignore[arg-type]
        await loop.begin()
        events = []
        while batch := await loop.take():
            events += batch
        completion = collect(events)
        kinds = ["text", "server_call", "server_result", "text"]
        assert [part.kind for part in completion.choices[0].parts] == kinds
        assert completion.choices[0].text("text") == "One.One."
        assert [listed.server for listed in completion.listed] == ["x"]
        assert [each.tools for each in service.requests] == [(), ()]
        said, answered = service.requests[1].messages or ()
        assert said.parts == (Text("One."), ToolCall("c1", "x__y", "{}"))
        [result] = answered.parts
        assert isinstance(result, ToolResult)
        assert result.is_error  # nobody is connected

    asyncio.run(main())


class SlowServers(ToolServers):
    """Answers once it is told to."""

    def __init__(self) -> None:
        super().__init__(McpSettings())
        self.called = 0
        self.answers = asyncio.Event()

    async def call_with_text(self, tool: OfferedTool, arguments: str) -> CallResult:
        self.called += 1
        await self.answers.wait()
        return CallResult("42", False)


async def slow_loop(servers: SlowServers) -> tuple[ToolLoop, "PlayedRounds"]:
    """A loop whose first round calls the tool, and whose second says what it answered."""
    call = [PartStarted(0, 0, "tool_call", "c1", "x__y"), PartDelta(0, 0, "{}"), PartEnded(0, 0)]
    say = [PartStarted(0, 0, "text"), PartDelta(0, 0, "42."), PartEnded(0, 0)]
    service = PlayedRounds([*call, Finished(0, "tool_calls")], [*say, Finished(0, "stop")])
    request = GenerationRequest(model="m", messages=())
    loop = ToolLoop(service, servers, offered(), request, "m", "id", None)  # type: ignore[arg-type]
    await loop.begin()
    return loop, service


async def rest_of(loop: ToolLoop, events: list[Event]) -> list[Event]:
    while batch := await loop.take():
        events += batch
    return events


def check_answer(events: list[Event], servers: SlowServers) -> None:
    assert servers.called == 1
    [choice] = collect(events).choices
    assert [part.kind for part in choice.parts] == ["server_call", "server_result", "text"]
    assert choice.text("text") == "42."


def test_a_tool_that_takes_longer_than_a_reader_waits_is_called_once() -> None:
    """A stream gives up its wait for events each time that it sends something to keep the connection alive."""

    async def main() -> None:
        servers = SlowServers()
        loop, _ = await slow_loop(servers)
        events = await loop.take() + await loop.take()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.take(), 0.02)
        servers.answers.set()
        check_answer(await rest_of(loop, events), servers)

    asyncio.run(main())


def test_what_a_tool_answers_as_its_reader_gives_up_is_not_lost() -> None:
    async def main() -> None:
        servers = SlowServers()
        loop, service = await slow_loop(servers)
        events = await loop.take() + await loop.take()
        reader = asyncio.create_task(loop.take())
        servers.answers.set()
        await service.continued.wait()
        reader.cancel()
        await asyncio.wait([reader])
        check_answer(await rest_of(loop, events), servers)

    asyncio.run(main())


class PlayedRounds:
    def __init__(self, *rounds: list[Event]) -> None:
        self.rounds = list(rounds)
        self.requests: list[GenerationRequest] = []
        self.continued = asyncio.Event()

    async def start(self, task: Generate, *, model: str, id: str, account: str) -> "PlayedRun":
        self.requests.append(task.request)
        if len(self.requests) > 1:
            self.continued.set()
        return PlayedRun(self.rounds.pop(0))


class PlayedRun:
    accepted = Accepted(1)

    def __init__(self, events: list[Event]) -> None:
        self.batches = [events, []]

    def hold_back(self) -> None:
        pass

    async def take(self) -> list[Event]:
        return self.batches.pop(0)

    async def aclose(self) -> None:
        pass


REMOTE = RemoteTool(name="y", description="", parameters={})


def offered() -> dict[str, OfferedTool]:
    return {"x__y": OfferedTool("x__y", "x", Connection(McpServer(name="x", transport="stdio")).call, REMOTE)}


def test_responses_and_messages_run_the_same_loop(address: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "input": "sum", "tools": [DEMO | {"require_approval": "never"}]}
    reply = httpx.post(f"{address}/v1/responses", json=body, timeout=30).json()
    kinds = ["mcp_list_tools", "reasoning", "message", "mcp_call", "reasoning", "message"]
    assert [item["type"] for item in reply["output"]] == kinds
    assert reply["output"][-1]["content"][0]["text"] == "The sum is 42."
    body = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": "sum"}]}
    headers = {"x-mcp-servers": "demo, broken"}
    reply = httpx.post(f"{address}/v1/messages", json=body, headers=headers, timeout=30).json()
    assert reply["stop_reason"] == "end_turn"
    assert reply["content"][-1]["text"] == "The sum is 42."


MCP: Any = [{"type": "mcp", "server_label": "demo", "require_approval": "never"}]
SERVERS: Any = [{"type": "mcp_toolset", "mcp_server_name": "demo"}]


def test_a_response_lists_the_tools_and_shows_each_call(openai_client: OpenAI) -> None:
    listed, _, _, call, _, said = openai_client.responses.create(model=MODEL, input="sum", tools=MCP).output
    assert listed.type == "mcp_list_tools"
    assert "add" in [tool.name for tool in listed.tools]
    assert call.type == "mcp_call"
    assert (call.server_label, call.name, call.status) == ("demo", "add", "completed")
    assert (json.loads(call.arguments), call.output) == ({"a": 19, "b": 23}, "42")
    assert said.type == "message"


def test_a_response_in_pieces_is_the_whole_one(openai_client: OpenAI) -> None:
    with openai_client.responses.stream(model=MODEL, input="sum", tools=MCP) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    of_the_call = [event.type for event in events if event.type.startswith("response.mcp_call")]
    assert list(dict.fromkeys(of_the_call)) == [
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    listing = [event.type for event in events if "mcp_list_tools" in event.type]
    assert listing == ["response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"]
    whole = openai_client.responses.create(model=MODEL, input="sum", tools=MCP)
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == [item.type for item in final.output]


def test_the_next_turn_of_a_response_reads_what_the_tools_said(openai_client: OpenAI) -> None:
    first = openai_client.responses.create(model=MODEL, input="sum", tools=MCP)
    items = openai_client.responses.create(model=MODEL, input="and now?", previous_response_id=first.id)
    assert items.output_text == "and now?"  # the script has no rule: it echoes
    told = list(openai_client.responses.input_items.list(items.id, order="asc"))
    assert [item.type for item in told][:2] == ["message", "mcp_list_tools"]
    assert items.usage is not None
    assert first.usage is not None
    assert (
        items.usage.input_tokens
        > openai_client.responses.input_tokens.count(model=MODEL, input="and now?").input_tokens
    )


@pytest.mark.parametrize(("most", "calls"), [(1, 1), (2, 2), (None, 3)])
def test_most_calls_of_a_response(openai_client: OpenAI, most: int | None, calls: int) -> None:
    """Without a limit of its own the operator's holds."""
    answer = openai_client.responses.create(model=MODEL, input="forever", tools=MCP, max_tool_calls=most)
    assert [item.type for item in answer.output].count("mcp_call") == calls
    assert answer.output_text == "Enough."
    assert answer.max_tool_calls == most


def test_a_call_that_failed_says_so(openai_client: OpenAI, anthropic_client: Anthropic) -> None:
    answer = openai_client.responses.create(model=MODEL, input="broken", tools=MCP)
    [call] = [item for item in answer.output if item.type == "mcp_call"]
    assert (call.status, call.output) == ("failed", None)
    assert "Error executing tool fail" in json.dumps(call.model_dump()["error"])
    message = anthropic_client.beta.messages.create(
        model=MODEL, max_tokens=99, messages=[{"role": "user", "content": "broken"}], tools=SERVERS
    )
    [result] = [block for block in message.content if block.type == "mcp_tool_result"]
    assert result.is_error


def test_a_call_that_the_clients_own_call_left_behind_is_incomplete(openai_client: OpenAI) -> None:
    own: Any = [{"type": "function", "name": "mine", "parameters": {"type": "object"}}]
    output = openai_client.responses.create(model=MODEL, input="both", tools=MCP + own).output
    assert [(item.type, getattr(item, "status", None)) for item in output[1:]] == [
        ("mcp_call", "incomplete"),
        ("function_call", "completed"),
    ]


def test_messages_show_the_calls_of_servers_that_they_name(anthropic_client: Anthropic) -> None:
    asked: Any = [{"role": "user", "content": "sum"}]
    whole = anthropic_client.beta.messages.create(model=MODEL, max_tokens=99, messages=asked, tools=SERVERS)
    kinds = ["text", "mcp_tool_use", "mcp_tool_result", "text"]
    assert [block.type for block in whole.content] == kinds
    _, use, result, said = whole.content
    assert use.type == "mcp_tool_use"
    assert (use.server_name, use.name, use.input) == ("demo", "add", {"a": 19, "b": 23})
    assert result.type == "mcp_tool_result"
    assert result.tool_use_id == use.id
    assert not result.is_error
    assert said.type == "text"
    assert said.text == "The sum is 42."
    with anthropic_client.beta.messages.stream(
        model=MODEL, max_tokens=99, messages=asked, tools=SERVERS
    ) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == kinds
    again = [*asked, {"role": "assistant", "content": whole.content}, {"role": "user", "content": "thanks"}]
    counted = anthropic_client.beta.messages.count_tokens(model=MODEL, messages=again)
    answer = anthropic_client.beta.messages.create(model=MODEL, max_tokens=99, messages=again)
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_request_that_does_not_ask_gets_no_tools(address: str) -> None:
    assert chat(address, "sum")["choices"][0]["message"]["content"] == "I have no tool."


def test_an_allow_list_of_the_request_holds(address: str) -> None:
    answer = chat(address, "sum", tools=[DEMO | {"allowed_tools": ["sleep"]}])
    assert answer["choices"][0]["message"]["content"] == "I have no tool."


def test_a_server_that_is_down_does_not_fail_the_chat(address: str) -> None:
    answer = chat(address, "sum", tools=[{"type": "mcp", "server_label": "broken"}])
    assert answer["choices"][0]["message"]["content"] == "I have no tool."


@pytest.mark.parametrize(
    ("user", "said"),
    [("broken", "The tool is broken."), ("slow", "It takes too long."), ("forever", "Enough.")],
)
def test_a_tool_that_fails_hangs_or_is_wanted_for_ever_ends_in_an_answer(
    address: str, user: str, said: str
) -> None:
    answer = chat(address, user, tools=[DEMO])
    assert answer["choices"][0]["message"]["content"] == said


def test_a_tool_that_was_required_once_is_not_required_for_ever(address: str) -> None:
    answer = chat(address, "sum", tools=[DEMO], tool_choice="required")
    assert answer["choices"][0]["message"]["content"].endswith("The sum is 42.")


def test_a_call_of_the_clients_own_tool_ends_the_loop_and_shows_that_call_alone(address: str) -> None:
    [choice] = chat(address, "both", tools=[DEMO, CLIENTS])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["mine"]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tools": [{"type": "mcp", "server_label": "nobody"}]}, "no MCP server 'nobody'"),
        ({"tools": [DEMO | {"server_url": "http://169.254.169.254/"}]}, "server_url"),
        ({"tools": [DEMO | {"require_approval": "always"}]}, "require_approval"),
        ({"tools": [DEMO], "n": 2}, "`n`"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(address: str, fields: dict[str, Any], part: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "sum"}]} | fields
    reply = httpx.post(f"{address}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert part in reply.json()["error"]["message"]


def test_pages_tell_of_servers_and_tools_and_call_them(address: str) -> None:
    servers = {each["name"]: each for each in httpx.get(f"{address}/v1/mcp/servers").json()["servers"]}
    assert servers["demo"]["state"] == "connected"
    assert servers["broken"]["state"] == "failed"
    assert "/nonexistent" not in json.dumps(servers)
    tools = httpx.get(f"{address}/v1/mcp/tools").json()
    assert tools["count"] == len(tools["tools"]) == servers["demo"]["tools_count"] - 1
    assert httpx.get(f"{address}/health").json()["mcp"]["servers_connected"] == 1
    reply = httpx.post(f"{address}/v1/mcp/execute", json={"tool_name": "add", "arguments": {"a": 1, "b": 2}})
    told = {"tool_name": "add", "content": "3", "result": "3", "is_error": False, "error_message": None}
    assert reply.json() == told
    broken = httpx.post(f"{address}/v1/mcp/execute", json={"tool_name": "demo__fail"}).json()
    assert broken["is_error"]
    assert broken["content"] is None
    assert httpx.post(f"{address}/v1/mcp/execute", json={"tool_name": "run_command"}).status_code == 404
    assert httpx.post(f"{address}/v1/mcp/execute", content=b"{}").status_code == 400


def test_cancelling_a_request_ends_it_while_a_tool_works(address: str) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "slow"}],
        "tools": [DEMO],
        "timeout": 0.7,
    }
    reply = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=30)
    assert reply.status_code == 408


def test_an_operator_can_offer_the_tools_to_every_chat(tmp_path: Path, config: str) -> None:
    with live_server(tmp_path, SCRIPT, mcp_config=config, mcp_offer="always") as address:
        until_connected(address)
        assert chat(address, "sum")["choices"][0]["message"]["content"].endswith("The sum is 42.")
        assert chat(address, "sum", n=2)["choices"][1]["message"]["content"] == "I have no tool."
        assert (
            chat(address, "sum", tools=[CLIENTS], tool_choice="none")["choices"][0]["finish_reason"] == "stop"
        )
