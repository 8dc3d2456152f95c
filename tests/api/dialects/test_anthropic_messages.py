"""What bodies of the Messages API mean."""

import json
from typing import Any, get_args

import msgspec
import pytest
from typing_extensions import get_type_hints, is_typeddict

from pippin.api.dialects.base import DecodeContext, Decoded, RunInfo
from pippin.api.dialects.messages.dialect import MessagesDialect, MessageShape
from pippin.api.dialects.shared.sealed_text import seal
from pippin.core.completion import collect
from pippin.core.conversation import (
    Image,
    Inline,
    Message,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Toolset,
    Url,
)
from pippin.core.errors import STATUS, ErrorReport, ServerError
from pippin.core.events import Accepted, Event, Finished, PartDelta, PartEnded, PartStarted, Progress, Usage
from pippin.core.requests import GenerationRequest, JsonSchema, Thinking
from tests.api.dialects.test_golden_frames import payloads

DIALECT = MessagesDialect()
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": {"type": "object"}}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "demo"}
COMPUTER = {
    "type": "computer_20250124",
    "name": "computer",
    "display_width_px": 1024,
    "display_height_px": 768,
}
PIN = {"cache_control": {"type": "ephemeral"}}
HI = [{"role": "user", "content": "Hi"}]


def decode(headers: dict[str, str] | None = None, **fields: Any) -> Decoded[MessageShape]:
    body = {"model": "m", "max_tokens": 9, "messages": HI, **fields}
    return DIALECT.decode(json.dumps(body).encode(), DecodeContext(headers=headers or {}))


def request(**fields: Any) -> GenerationRequest:
    [made] = decode(**fields).requests
    return made


def messages(*given: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    made = request(messages=list(given), **fields).messages
    assert made is not None
    return made


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def refusal(**fields: Any) -> ServerError:
    with pytest.raises(ServerError) as caught:
        decode(**fields)
    assert caught.value.report.status == 400
    return caught.value


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_system_is_a_string_or_blocks(system: Any) -> None:
    assert messages(*HI, system=system) == (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("Hi"),)),
    )


def test_the_billing_header_is_left_out_of_the_prompt() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=a1b2c;"
    blocks = [text(header), text("You are Claude Code."), text("Rules.", **PIN)]
    expected = Message("system", (Text("You are Claude Code."), Text("Rules.")), pin=True)
    assert messages(*HI, system=blocks)[0] == expected
    assert messages(*HI, system=f"{header}\nYou are Claude Code.")[0].parts == (Text("You are Claude Code."),)
    assert messages(*HI, system=[text(header)])[0].role == "user"


def test_system_messages_may_stand_in_the_conversation() -> None:
    made = messages(*HI, {"role": "system", "content": "Now in French."}, user(text("Go on")))
    assert [message.role for message in made] == ["user", "system", "user"]


def test_turns_of_one_role_are_one_turn() -> None:
    made = messages(user(text("a")), user(text("b", **PIN)), assistant(text("c")), assistant(text("d")), *HI)
    assert made[0] == Message("user", (Text("a\nb"),), pin=True)
    assert made[1].parts == (Text("c\nd"),)


def test_a_tool_turn_becomes_calls_and_results() -> None:
    made = messages(
        user(text("Weather?")),
        assistant(
            {"type": "thinking", "thinking": "Hm", "signature": "s"},
            text("Looking."),
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Ulm"}},
        ),
        user(
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"},
            {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
            text("And now?"),
        ),
    )
    assert [message.role for message in made] == ["user", "assistant", "tool", "tool", "user"]
    assert made[1].parts == (
        Reasoning("Hm", "s"),
        Text("Looking."),
        ToolCall("toolu_1", "get_weather", '{"city":"Ulm"}'),
    )
    assert made[2].parts == (ToolResult("toolu_1", (Text("Rain"),), "get_weather"),)
    assert made[3].parts == (ToolResult("toolu_2", (), None, True),)


def test_a_tool_result_may_hold_blocks_and_images() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    [message] = messages(
        user({"type": "tool_result", "tool_use_id": "t", "content": [text("See:"), image]}),
    )
    [result] = message.parts
    assert isinstance(result, ToolResult)
    assert result.parts == (
        Text("See:"),
        Image(Inline(b"\0\0\0", "image/png"), field="messages[0].content[0].content[1]"),
    )


def test_images_and_documents_of_text() -> None:
    [message] = messages(
        user(
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            {
                "type": "document",
                "title": "Notes",
                "context": "From May.",
                "source": {"type": "text", "media_type": "text/plain", "data": "Buy milk."},
            },
            {"type": "document", "source": {"type": "content", "content": [text("Inline.")]}},
            {"type": "search_result", "source": "s.org", "title": "Found", "content": [text("It.")]},
        )
    )
    assert message.parts == (
        Image(Url("https://example.org/a.png"), field="messages[0].content[0]"),
        Text("Notes\nFrom May.\nBuy milk.", apart=True),
        Text("Inline.", apart=True),
        Text("Found\ns.org\nIt.", apart=True),
    )


def test_thoughts_that_were_not_shown_come_back_in_their_signature() -> None:
    made = messages(
        *HI, assistant({"type": "thinking", "thinking": "", "signature": seal("Deep")}, text("Yes")), *HI
    )
    assert made[1].parts[0] == Reasoning("Deep", seal("Deep"))


def test_a_last_assistant_message_is_continued() -> None:
    assert request(messages=[*HI, assistant(text("The answer is ("))]).continue_final
    assert not request().continue_final


def test_blocks_of_servers_elsewhere_are_left_out_with_a_warning() -> None:
    decoded = decode(
        messages=[
            *HI,
            assistant(
                {"type": "redacted_thinking", "data": "x"}, {"type": "server_tool_use", "id": "s"}, text("A")
            ),
            *HI,
        ]
    )
    assert decoded.requests[0].messages is not None
    assert decoded.requests[0].messages[1].parts == (Text("A"),)
    assert "redacted_thinking, server_tool_use" in decoded.warnings[0]


def test_tools_without_a_schema_are_left_out_unless_their_schema_is_known() -> None:
    decoded = decode(
        tools=[
            TOOL,
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"type": "memory_20250818", "name": "memory"},
            COMPUTER,
        ]
    )
    names = [tool.name for tool in decoded.requests[0].tools]
    assert names == ["get_weather", "bash", "str_replace_based_edit_tool", "memory", "computer"]
    assert "web_search_20250305" in decoded.warnings[0]


def test_a_tool_in_the_shape_of_another_api_is_refused_not_left_out() -> None:
    openai = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(ServerError, match=r"`tools\[1\].type` is not supported"):
        decode(tools=[TOOL, openai])


@pytest.mark.parametrize(
    ("kind", "more", "has", "lacks"),
    [
        ("computer_20241022", {}, "cursor_position", "scroll"),
        ("computer_20250124", {}, "scroll", "zoom"),
        ("computer_20251124", {"enable_zoom": True}, "zoom", "navigate"),
    ],
)
def test_the_computer_in_one_tool_has_the_actions_of_its_day(
    kind: str, more: dict[str, Any], has: str, lacks: str
) -> None:
    (tool,) = request(tools=[COMPUTER | {"type": kind} | more]).tools
    schema = tool.parameters or {}
    assert has in schema["properties"]["action"]["enum"]
    assert lacks not in schema["properties"]["action"]["enum"]
    assert {"coordinate", "text"} <= schema["properties"].keys()
    assert "1024x768" in (tool.description or "")


def test_a_screen_without_a_size_is_refused_by_name() -> None:
    given = {name: value for name, value in COMPUTER.items() if name != "display_height_px"}
    with pytest.raises(ServerError) as refused:
        request(tools=[given])
    assert refused.value.report.param == "tools[0].display_height_px"


def test_members_of_a_clients_toolset_are_tools_that_are_named_apart() -> None:
    both = [{"type": "computer_toolset_20260801"}, {"type": "browser_toolset_20260801"}]
    names = [tool.name for tool in request(tools=both).tools]
    assert {"computer__screenshot", "browser__screenshot", "browser__navigate"} <= set(names)
    assert len(names) == 17 + 31
    some = {**both[0], "configs": {"zoom": {"enabled": False}, "key": {"enabled": True}}}
    made = request(tools=[some], tool_choice={"type": "tool", "name": "computer"})
    assert len(made.tools) == 16
    assert made.tool_choice == ToolChoice("required", tuple(tool.name for tool in made.tools))
    one = request(tools=both, tool_choice={"type": "tool", "name": "navigate"})
    assert one.tool_choice == ToolChoice("required", ("browser__navigate",))
    assert refusal(tools=[both[0] | {"configs": {"fly": {}}}]).report.param == "tools[0].configs.fly"


def test_a_call_of_a_member_names_its_toolset_on_both_ways() -> None:
    decoded = decode(tools=[{"type": "browser_toolset_20260801"}])
    call = PartStarted(0, 0, "tool_call", "call_1", "browser__navigate")
    said = stream(decoded, call, PartEnded(0, 0), finished("tool_calls"))
    (block,) = [each["content_block"] for each in said if each["type"] == "content_block_start"]
    assert (block["name"], block["toolset_name"]) == ("navigate", "browser")
    block |= {"input": {"url": "x"}}
    result = {"type": "tool_result", "tool_use_id": block["id"], "toolset_name": "browser", "content": "ok"}
    _, asked, answered = messages(*HI, assistant(block), user(result))
    assert asked.parts == (ToolCall(block["id"], "browser__navigate", '{"url":"x"}'),)
    assert answered.parts == (ToolResult(block["id"], (Text("ok"),), "browser__navigate"),)


ADDED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL | {"name": "add"}}}
NAMED = {"type": "tool_reference", "name": "get_weather"}
GONE = {"type": "tool_removal", "tool": NAMED}
BACK = {"type": "tool_addition", "tool": NAMED}


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ((ADDED,), ["get_weather", "add"]),
        ((GONE,), []),
        ((GONE, ADDED, BACK), ["add", "get_weather"]),
        ((ADDED, {"type": "tool_removal", "tool": NAMED | {"name": "add"}}), ["get_weather"]),
    ],
)
def test_tools_that_change_in_the_conversation_are_those_after_all_changes(
    changes: tuple[Any, ...], offered: list[str]
) -> None:
    made = request(
        tools=[TOOL], messages=[*HI, assistant(text("Ho")), {"role": "system", "content": changes}]
    )
    assert [tool.name for tool in made.tools] == offered
    assert len(made.messages or ()) == 2
    summed = assistant({"type": "compaction", "content": "They met.", "tool_changes": changes})
    assert [tool.name for tool in request(tools=[TOOL], messages=[summed, *HI]).tools] == offered


def test_servers_come_and_go_as_tools_do() -> None:
    leaves = {"type": "tool_removal", "tool": {"type": "mcp_toolset_reference", "server_name": "demo"}}
    assert decode(tools=[TOOLSET]).requests[0].toolsets
    assert not decode(tools=[TOOLSET], messages=[*HI, user(leaves, text("Go on"))]).requests[0].toolsets


def test_a_compaction_is_a_summary_in_a_block_of_its_own() -> None:
    decoded = decode(system="S", compaction={"type": "summarize", "instructions": "In one line."})
    assert decoded.requests[0].messages is not None
    assert decoded.requests[0].messages[-1].parts == (Text("In one line."),)
    parts = (PartStarted(0, 0, "text"), PartDelta(0, 0, "They met."), PartEnded(0, 0))
    said = stream(decoded, *parts, finished())
    assert [each["delta"] for each in said if each["type"] == "content_block_delta"] == [
        {"type": "compaction_delta", "content": "They met."}
    ]
    assert said[-2]["delta"]["stop_reason"] == "compaction"


def test_a_compaction_stands_for_the_messages_before_it() -> None:
    summed = assistant({"type": "compaction", "content": "They met.", "signature": "s"})
    system, asked = messages(*HI, summed, *HI, system="S")
    assert (system.role, asked.role) == ("system", "user")
    assert [type(part) for part in asked.parts] == [Text]
    assert "They met.\\nHi" in str(asked.parts)
    assert messages(assistant({"type": "compaction", "content": None}), *HI)[-1].parts == (Text("Hi"),)


@pytest.mark.parametrize(
    ("given", "choice", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "none"}, ToolChoice("none"), True),
        ({"type": "tool", "name": "get_weather"}, ToolChoice("required", ("get_weather",)), True),
    ],
)
def test_tool_choice(given: dict[str, Any], choice: ToolChoice, parallel: bool) -> None:
    made = request(tools=[TOOL], tool_choice=given)
    assert made.tools == (Tool("get_weather", "Weather.", {"type": "object"}),)
    assert (made.tool_choice, made.parallel_tool_calls) == (choice, parallel)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "disabled"}}, Thinking(enabled=False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Thinking(enabled=True, budget=1024)),
        ({"thinking": {"type": "adaptive"}}, Thinking(enabled=True)),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            Thinking(enabled=True, effort="high"),
        ),
        ({"enable_thinking": True, "thinking_budget": 5}, Thinking(enabled=True, budget=5)),
    ],
)
def test_thinking(fields: dict[str, Any], expected: Thinking) -> None:
    assert request(**fields).thinking == msgspec.structs.replace(expected, off_by_default=True)


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_schema_for_the_answer(name: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    given = {"format": form} if name == "output_config" else form
    assert request(**{name: given}).output_format == JsonSchema({"type": "object"}, None, False)


def test_sampling_and_stops_reach_the_request() -> None:
    made = request(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["END"], min_p=0.1)
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k) == (0.5, 0.9, 3)
    assert (made.stop, made.max_tokens) == (("END",), 9)


def test_toolsets_name_servers_of_the_operators() -> None:
    made = request(tools=[TOOL, TOOLSET], tool_choice={"type": "any"})
    assert made.toolsets == (Toolset("demo"),)
    assert [tool.name for tool in made.tools] == ["get_weather"]
    chosen = {"default_config": {"enabled": False}, "configs": {"a": {"enabled": True}, "b": {}}}
    assert request(tools=[TOOLSET | chosen]).toolsets == (Toolset("demo", ("a",)),)


def test_calls_of_servers_and_their_results_are_turns_of_their_own() -> None:
    use = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "add", "server_name": "demo", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": "3", "is_error": False}
    call = ToolCall("mcptoolu_1", "demo__add", "{}")
    answer = Message("tool", (ToolResult("mcptoolu_1", (Text("3"),), "demo__add"),))
    assert messages(HI[0], assistant(text("Look."), use, result, text("Three."))) == (
        Message("user", (Text("Hi"),)),
        Message("assistant", (Text("Look."), call)),
        answer,
        Message("assistant", (Text("Three."),)),
    )
    assert messages(HI[0], assistant(use, result))[1:] == (Message("assistant", (call,)), answer)
    assert messages(HI[0], assistant(text("Look."), use))[1].parts == (Text("Look."),)  # it was never made


def test_cache_control_pins_and_changes_the_figures() -> None:
    assert not decode().shape.cached
    for fields in (
        {"cache_control": {"type": "ephemeral"}},
        {"messages": [user(text("Hi", **PIN))]},
        {"system": [text("S", **PIN)]},
        {"system": "S", "tools": [TOOL | PIN]},
    ):
        decoded = decode(**fields)
        assert decoded.shape.cached
        assert decoded.requests[0].messages is not None
        assert any(message.pin for message in decoded.requests[0].messages)


def test_what_claude_code_sends_is_accepted() -> None:
    decoded = decode(
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"},
        model="claude-sonnet-4-5",
        metadata={"user_id": "u"},
        service_tier="auto",
        container={"skills": []},
        mcp_servers=[],
        betas=["x"],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        thinking={"type": "adaptive"},
        output_config={"effort": "medium"},
        speed="standard",
        some_future_beta={"a": 1},
    )
    assert decoded.ignored == ("some_future_beta",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [user({"type": "redacted_thinking", "data": "x"})]}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [user({"type": "hologram"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        (
            {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
            "messages[0].content[0].source.file_id",
        ),
        (
            {"messages": [user({"type": "image", "source": {"type": "base64", "data": "!"}})]},
            "messages[0].content[0].source.data",
        ),
        (
            {
                "messages": [
                    user(
                        {
                            "type": "document",
                            "source": {"type": "text", "data": "x"},
                            "citations": {"enabled": True},
                        }
                    )
                ]
            },
            "messages[0].content[0].citations",
        ),
        ({"mcp_servers": [{"type": "url", "url": "https://x/", "name": "x"}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"tools": [{"type": "mcp_toolset"}]}, "tools[0].mcp_server_name"),
        (
            {"tools": [TOOLSET | {"configs": {"add": {"enabled": False}}}]},
            "tools[0].configs.add",
        ),
        ({"tools": [TOOLSET | {"default_config": {"enabled": False}}]}, "tools[0].configs"),
        ({"tools": [TOOLSET | {"tools": [{"name": "add"}]}]}, "tools[0].tools"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, "tools[0].input_schema.type"),
        ({"tools": [TOOL | {"input_schema": {"properties": []}}]}, "tools[0].input_schema.properties"),
        ({"system": "Be brief.", "messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"tools": [{"name": "no name", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"compaction": {"type": "forget"}}, "compaction.type"),
        ({"compaction": {"type": "summarize"}, "stop_sequences": ["x"]}, "stop_sequences"),
        (
            {"compaction": {"type": "summarize"}, "tools": [TOOL], "tool_choice": {"type": "any"}},
            "tool_choice",
        ),
        ({"messages": [*HI, user({"type": "tool_removal", "tool": NAMED})]}, "messages[1].content[0].tool"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"temperature": 3}, "temperature"),
        ({"n": 2}, "n"),
        ({"headers": {"anthropic-version": "latest"}}, "anthropic-version"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).report.param == param


def test_every_block_that_the_vendor_documents_is_read_or_left_out() -> None:
    from anthropic.types.beta import BetaContentBlockParam

    documented = [block for block in get_args(BetaContentBlockParam) if is_typeddict(block)]
    kinds = {kind for block in documented for kind in get_args(get_type_hints(block)["type"])}
    assert {"text", "tool_use", "tool_result", "mcp_tool_listing", "advisor_tool_result"} <= kinds
    for kind in sorted(kinds):
        params = {refused_for(user({"type": kind})), refused_for(assistant({"type": kind}))}
        assert not all(param.endswith("[0].type") for param in params), kind


def refused_for(message: dict[str, Any]) -> str:
    try:
        decode(messages=[*HI, assistant({"type": "text", "text": "Ho"}), message])
    except ServerError as error:
        return error.report.param or ""
    return ""


def test_a_count_is_of_the_same_request_without_max_tokens() -> None:
    body = {"model": "m", "messages": HI, "system": "S", "tools": [TOOL]}
    [counted] = MessagesDialect(counting=True).decode(json.dumps(body).encode(), DecodeContext()).requests
    assert counted.max_tokens is None
    full = request(system="S", tools=[TOOL])
    assert (counted.messages, counted.tools, counted.thinking) == (full.messages, full.tools, full.thinking)


def stream(decoded: Decoded[MessageShape], *events: Event) -> list[dict[str, Any]]:
    encoder = DIALECT.encoder(decoded.shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    return payloads(encoder.start([Accepted(prompt_tokens=20)]) + b"".join(map(encoder.event, events)))


def finished(reason: Any = "stop", stop: str | None = None) -> Finished:
    usage = Usage(prompt_tokens=20, cached_tokens=12, stored_tokens=6, completion_tokens=3)
    return Finished(0, reason, stop, usage)


def test_the_first_event_tells_what_was_cached() -> None:
    first = stream(decode(), Progress(done=20, total=20, cached=12), finished())[0]
    assert first["message"]["usage"]["input_tokens"] == 8
    assert first["message"]["usage"]["cache_read_input_tokens"] == 12


def test_what_was_written_to_the_cache_is_told_to_those_who_ask_for_caching() -> None:
    plain = stream(decode(), finished())[-2]["usage"]
    assert (plain["input_tokens"], plain["cache_creation_input_tokens"]) == (8, 0)
    asked = stream(decode(cache_control={"type": "ephemeral"}), finished())[-2]["usage"]
    assert (asked["input_tokens"], asked["cache_creation_input_tokens"]) == (2, 6)


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (finished("stop"), "end_turn", None),
        (finished("length"), "max_tokens", None),
        (finished("stop", "END"), "stop_sequence", "END"),
        (finished("tool_calls"), "tool_use", None),
    ],
)
def test_stop_reasons(end: Finished, reason: str, sequence: str | None) -> None:
    delta = stream(decode(), end)[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}


THOUGHT = [PartStarted(0, 0, "reasoning"), PartDelta(0, 0, "Hm"), PartEnded(0, 0), finished()]


def test_thinking_that_is_not_to_be_shown_is_carried_by_the_signature() -> None:
    decoded = decode(thinking={"type": "adaptive", "display": "omitted"})
    deltas = [event["delta"] for event in stream(decoded, *THOUGHT) if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "signature_delta", "signature": seal("Hm")}]
    encoder = DIALECT.encoder(decoded.shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    [block] = json.loads(encoder.whole([collect(THOUGHT)]))["content"]
    assert block == {"type": "thinking", "thinking": "", "signature": seal("Hm")}


@pytest.mark.parametrize("kind", STATUS)
def test_errors_have_anthropics_shape_and_types(kind: Any) -> None:
    body = json.loads(DIALECT.error(ErrorReport(kind=kind, message="So."), "req_1"))
    assert body["type"] == "error"
    assert body["request_id"] == "req_1"
    assert body["error"]["message"] == "So."
    assert body["error"]["type"].endswith(("_error", "request_too_large"))


def test_a_stream_is_kept_alive_by_comments_and_then_by_pings() -> None:
    encoder = DIALECT.encoder(decode().shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    assert encoder.keep_alive().startswith(b":")
    assert encoder.start([Accepted(prompt_tokens=20)]) == b""
    assert encoder.keep_alive().startswith(b":")
    assert payloads(encoder.event(Progress(done=1, total=20)))[0]["type"] == "message_start"
    assert payloads(encoder.keep_alive()) == [{"type": "ping"}]
    assert encoder.event(Progress(done=20, total=20)) == b""
