"""Pippin as an MCP server: a real client of the protocol lists its tools and calls them."""

import asyncio
import base64
import contextlib
import io
import time
import wave
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

import mcp
from pippin.api.mcp_tools import tool
from pippin.api.mcp_tools.toolbox import TOOLS
from tests.api.live_server import MODEL, live_server

MANAGING = {"load_model", "unload_model"}
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"user": "slowly"}, "say": "one two three four five six seven eight nine ten", "gap": 0.2},
        {"when": {"user": "think"}, "think": "Let me see.", "say": "So it is."},
        {"when": {"system": "French"}, "say": "Bonjour."},
        {"when": {"user": "break"}, "say": "one two", "fault": {"kind": "error", "after": 1}},
    ]
}
KEYS = """
root: {key: k-root, role: admin}
alice: {key: k-alice}
carol: {key: k-carol, models: [org/other]}
dan: {key: k-dan, endpoints: [/v1/models]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys.yaml").write_text(KEYS)
    with live_server(folder, SCRIPT, api_key_file=str(folder / "keys.yaml")) as url:
        yield url


@contextlib.asynccontextmanager
async def connected(url: str, who: str = "root", mode: Any = "auto") -> AsyncIterator[mcp.Client]:
    async with create_mcp_http_client(headers={"authorization": f"Bearer k-{who}"}) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with mcp.Client(transport, mode=mode) as client:
            yield client


def call(url: str, name: str, who: str = "root", **arguments: Any) -> Any:
    async def main() -> Any:
        async with connected(url, who) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(main())


def sound() -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(16_000)
        recording.writeframes(bytes(3200))
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_generation_of_the_protocol_finds_the_tools(server: str, mode: str) -> None:
    async def main() -> None:
        async with connected(server, mode=mode) as client:
            listed = (await client.list_tools()).tools
            assert {tool.name for tool in listed} == {tool.name for tool in TOOLS}
            for each in listed:
                Draft202012Validator.check_schema(each.input_schema)
                assert each.input_schema["type"] == "object"
                assert each.description
            answer = await client.call_tool("complete", {"prompt": "Hello"})
            assert answer.structured_content["text"] == "Hello"

    asyncio.run(main())


def test_complete_answers_in_text_with_the_facts_beside_it(server: str) -> None:
    answer = call(server, "complete", prompt="think", max_tokens=100, temperature=0)
    assert answer.content[0].text == "So it is."
    assert answer.structured_content == {
        "text": "So it is.",
        "reasoning": "Let me see.",
        "finish_reason": "stop",
        "model": MODEL,
        "prompt_tokens": answer.structured_content["prompt_tokens"],
        "completion_tokens": answer.structured_content["completion_tokens"],
    }
    assert answer.structured_content["prompt_tokens"] > 0


def test_complete_takes_a_system_message_earlier_turns_and_a_schema(server: str) -> None:
    assert call(server, "complete", prompt="Hi", system="Speak French.").content[0].text == "Bonjour."
    earlier = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e f"}]
    short = call(server, "complete", prompt="Hi").structured_content["prompt_tokens"]
    assert call(server, "complete", prompt="Hi", messages=earlier).structured_content["prompt_tokens"] > short
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert call(server, "complete", prompt="Hi", schema=schema).content[0].text == '{"n": 0}'
    assert (
        call(server, "complete", prompt="a b c d e", max_tokens=2).structured_content["finish_reason"]
        == "length"
    )


def test_the_other_kinds_of_model_have_tools(server: str) -> None:
    vectors = call(server, "embed", texts=["a", "b"]).structured_content
    assert [len(vector) for vector in vectors["vectors"]] == [vectors["dimensions"]] * 2
    ranking = call(server, "rerank", query="a", documents=["b", "a"], top_n=1).structured_content
    assert [each["index"] for each in ranking["results"]] == [1]
    transcript = call(server, "transcribe", audio=sound())
    assert transcript.content[0].text == transcript.structured_content["text"]
    assert transcript.structured_content["segments"]
    spoken = call(server, "speak", text="Hello", format="wav").content[1]
    assert spoken.mime_type == "audio/wav"
    assert base64.b64decode(spoken.data)[:4] == b"RIFF"


def test_who_manages_loads_and_unloads(server: str) -> None:
    assert call(server, "unload_model", model=MODEL).structured_content["unloaded"] is True
    assert call(server, "list_models").structured_content["models"][0]["state"] == "unloaded"
    assert call(server, "load_model", model=MODEL).structured_content["state"] == "loaded"
    assert call(server, "list_models", kind="speech").structured_content["models"] == []


def test_a_users_key_is_shown_no_management_and_refused_it(server: str) -> None:
    async def main() -> None:
        async with connected(server, "alice") as client:
            assert not MANAGING & {tool.name for tool in (await client.list_tools()).tools}
            for name in MANAGING:
                refused = await client.call_tool(name, {"model": MODEL})
                assert refused.is_error
                assert "takes an administrator's" in refused.content[0].text
            assert not (await client.call_tool("complete", {"prompt": "Hi"})).is_error

    asyncio.run(main())


def test_a_key_opens_no_model_here_that_it_does_not_open_elsewhere(server: str) -> None:
    refused = call(server, "complete", "carol", prompt="Hi", model=MODEL)
    assert refused.is_error
    assert "does not open the model" in refused.content[0].text
    assert call(server, "list_models", "carol").structured_content["models"] == []


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("complete", {"promt": "x"}, "There is no argument `promt`: `complete` takes `prompt`, `model`"),
        ("complete", {}, "`prompt` is required."),
        ("complete", {"prompt": "x", "temperature": "hot"}, "Invalid `temperature`"),
        ("complete", {"prompt": "x", "images": ["ftp://x/y.png"]}, "messages[0].content[0]"),
        ("complete", {"prompt": "x", "model": "none/such"}, "The model 'none/such' does not exist"),
        ("complete", {"prompt": "break"}, "."),
        ("complete", {"prompt": "word " * 5000}, "context"),
        ("embed", {"texts": []}, "Invalid `texts`"),
        ("transcribe", {"audio": "*"}, "`audio` must be valid base64."),
        ("speak", {"text": " "}, "`text` must not be empty."),
        ("load_model", {"model": "none/such"}, "The model 'none/such' does not exist"),
    ],
)
def test_what_goes_wrong_is_a_result_with_a_sentence(
    server: str, name: str, arguments: dict[str, Any], sentence: str
) -> None:
    answer = call(server, name, **arguments)
    assert answer.is_error
    assert sentence in answer.content[0].text


def test_an_unknown_tool_is_an_error_of_the_protocol(server: str) -> None:
    async def main() -> None:
        async with connected(server) as client:
            with pytest.raises(mcp.MCPError, match="There is no tool 'nothing'"):
                await client.call_tool("nothing", {})

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_asks_is_told_how_far_a_call_is(
    server: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "TELL_SECONDS", 0.3)
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async def main() -> None:
        async with connected(server, mode=mode) as client:
            await client.call_tool("complete", {"prompt": "slowly"}, progress_callback=hear)

    asyncio.run(main())
    assert len(told) >= 2
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
    assert any(message and message.endswith("tokens so far.") for _, message in told)


def running(url: str) -> int:
    headers = {"authorization": "Bearer k-root"}
    return int(httpx.get(f"{url}/v1/status", headers=headers).json()["num_running"])


def until_running(url: str, count: int) -> None:
    ends = time.monotonic() + 10
    while running(url) != count:
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_call_ends_at_once(server: str, mode: str) -> None:
    async def main() -> None:
        async with connected(server, mode=mode) as client:
            asking = asyncio.create_task(client.call_tool("complete", {"prompt": "slowly"}))
            await asyncio.to_thread(until_running, server, 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            begun = time.monotonic()
            await asyncio.to_thread(until_running, server, 0)
            assert time.monotonic() - begun < 1.5, "the answer takes two seconds"

    asyncio.run(main())
