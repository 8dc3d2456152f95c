"""What bodies of the Responses API mean."""

import base64
import json
from typing import Any

import pytest

from pippin.api.dialects.base import DecodeContext, Decoded, History, RunInfo
from pippin.api.dialects.responses.answer import ResponseShape
from pippin.api.dialects.responses.dialect import CompactionDialect, ResponsesDialect
from pippin.api.dialects.shared.sealed_text import seal, unseal
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
    Url,
    Video,
)
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Accepted, Event, Finished, PartDelta, PartEnded, PartStarted
from pippin.core.requests import GenerationRequest, JsonObject, JsonSchema
from tests.api.dialects.test_golden_frames import payloads

DIALECT = ResponsesDialect()
MCP = {"type": "mcp", "server_label": "demo"}
FUNCTION = {"type": "function", "name": "look"}
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


class Stored(History):
    """A history of fixed items."""

    def items(self, response_id: str) -> list[dict[str, Any]]:
        if response_id != "resp_1":
            raise ServerError("not_found", "There is no such response.")
        return [user("Before"), {"type": "message", "role": "assistant", "content": "Answer"}]

    def conversation(self, conversation_id: str) -> list[dict[str, Any]]:
        return [user(f"In {conversation_id}")]

    def item(self, item_id: str) -> dict[str, Any]:
        return user(f"Item {item_id}")


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def decode(**fields: Any) -> Decoded[ResponseShape]:
    body = {"model": "m", "input": "Hi", **fields}
    return DIALECT.decode(json.dumps(body).encode(), DecodeContext(history=Stored()))


def request(**fields: Any) -> GenerationRequest:
    [made] = decode(**fields).requests
    return made


def messages(*items: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    made = request(input=list(items), **fields).messages
    assert made is not None
    return made


def refusal(**fields: Any) -> ServerError:
    with pytest.raises(ServerError) as caught:
        decode(**fields)
    assert caught.value.report.status == 400
    return caught.value


def test_a_string_is_a_user_message_after_the_instructions() -> None:
    made = request(instructions="Be brief.").messages
    assert made == (Message("system", (Text("Be brief."),)), Message("user", (Text("Hi"),)))


def test_the_items_of_an_assistant_turn_are_one_message() -> None:
    made = messages(
        user("Weather?"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
        user("Thanks"),
    )
    assert [message.role for message in made] == ["user", "assistant", "tool", "user"]
    assert made[1].parts == (Reasoning("Hm"), Text("Looking."), ToolCall("c1", "get_weather", "{}"))
    assert made[2].parts == (ToolResult("c1", (Text("Rain"),), "get_weather"),)


def test_outputs_may_be_parts_of_text_and_images() -> None:
    [message] = messages(
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "A picture:"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ],
        }
    )
    image = Image(Inline(b"\0\0\0", "image/png"), field="input[0].output[1]")
    assert message.parts == (ToolResult("c1", (Text("A picture:"), image)),)


@pytest.mark.parametrize(
    ("call", "output", "name", "arguments"),
    [
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "apply", "input": 'a "patch"'},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
            "apply",
            {"input": 'a "patch"'},
        ),
        (
            {
                "type": "local_shell_call",
                "id": "c",
                "call_id": "c",
                "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}},
            },
            {"type": "local_shell_call_output", "id": "c", "output": "done"},
            "local_shell",
            {"command": ["ls"]},
        ),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [{"stdout": "done", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
            },
            "shell",
            {"commands": ["ls"]},
        ),
        (
            {
                "type": "apply_patch_call",
                "call_id": "c",
                "status": "completed",
                "operation": {"type": "delete_file", "path": "a"},
            },
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "done"},
            "apply_patch",
            {"type": "delete_file", "path": "a"},
        ),
        (
            {
                "type": "function_call",
                "call_id": "c",
                "namespace": "mcp__git",
                "name": "log",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "c", "output": "done"},
            "mcp__git__log",
            {},
        ),
    ],
    ids=["custom", "local_shell", "shell", "apply_patch", "namespace"],
)
def test_calls_of_every_kind_come_back_as_calls_of_functions(
    call: dict[str, Any], output: dict[str, Any], name: str, arguments: dict[str, Any]
) -> None:
    assistant, tool = messages(call, output)
    [made] = assistant.parts
    assert isinstance(made, ToolCall)
    assert (made.id, made.name, json.loads(made.arguments)) == ("c", name, arguments)
    [result] = tool.parts
    assert isinstance(result, ToolResult)
    assert result.name == name
    assert isinstance(result.parts[0], Text)
    assert result.parts[0].text.startswith("done")


def test_what_hosted_tools_left_behind_is_left_out_with_a_warning() -> None:
    decoded = decode(input=[user("Hi"), {"type": "web_search_call", "id": "ws_1", "status": "completed"}])
    assert decoded.requests[0].messages == (Message("user", (Text("Hi"),)),)
    assert "web_search_call" in decoded.warnings[0]


def test_tools_that_cannot_run_here_are_left_out_with_a_warning() -> None:
    decoded = decode(
        tools=[
            {"type": "web_search"},
            WEATHER,
            {"type": "image_generation"},
            {"type": "image_generation"},
        ]
    )
    assert [tool.name for tool in decoded.requests[0].tools] == ["get_weather"]
    assert "web_search, image_generation " in decoded.warnings[0]


def test_tools_of_newer_clients_are_left_out_with_a_warning() -> None:
    decoded = decode(
        tools=[
            {"type": "teleport", "range": 9},
            {"type": "Tele\nport"},
            {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "beam"}, WEATHER]},
        ]
    )
    assert [tool.name for tool in decoded.requests[0].tools] == ["crm__get_weather"]
    assert "teleport, unknown, beam " in decoded.warnings[0]


@pytest.mark.parametrize("context", ["all_turns", "current_turn", "of_tomorrow"])
def test_a_context_of_reasoning_is_taken_with_a_warning(context: str) -> None:
    decoded = decode(reasoning={"effort": "low", "context": context})
    assert decoded.requests[0].thinking.effort == "low"
    assert "`reasoning.context`" in decoded.warnings[0]
    assert decode(reasoning={"context": "auto"}).warnings == ()


def test_custom_namespace_and_shell_tools_become_functions() -> None:
    tools = request(
        tools=[
            {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}},
            {"type": "namespace", "name": "crm", "description": "CRM", "tools": [WEATHER]},
            {"type": "local_shell"},
        ]
    ).tools
    assert [tool.name for tool in tools] == ["patch", "crm__get_weather", "local_shell"]
    assert tools[0].parameters is not None
    assert tools[0].parameters["required"] == ["input"]


def test_a_regular_expression_of_a_custom_tool_is_enforced() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+|-"}
    [tool] = request(tools=[{"type": "custom", "name": "word", "format": form}]).tools
    assert tool.strict
    assert (tool.parameters or {})["properties"]["input"]["pattern"] == "^(?:[a-z]+|-)$"


def test_a_grammar_of_a_custom_tool_is_told_to_the_model() -> None:
    [tool] = request(
        tools=[
            {
                "type": "custom",
                "name": "sql",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: WORD"},
            }
        ]
    ).tools
    assert tool.description is not None
    assert "start: WORD" in tool.description


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "get_weather"}, ToolChoice("required", ("get_weather",))),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
            ToolChoice("auto", ("get_weather",)),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
            ToolChoice("required", ("get_weather",)),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            ToolChoice("none"),
        ),
    ],
)
def test_tool_choice(given: Any, expected: ToolChoice) -> None:
    made = request(tools=[WEATHER], tool_choice=given)
    assert made.tool_choice == expected
    assert made.parallel_tool_calls == (expected != ToolChoice("required", ("get_weather",)))


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("sometimes", "tool_choice"),
        ({"type": "function", "name": "other"}, "tool_choice.name"),
        ({"type": "file_search"}, "tool_choice"),
        ({"type": "function"}, "tool_choice.name"),
    ],
)
def test_a_tool_choice_that_cannot_be_kept_is_refused(given: Any, param: str) -> None:
    assert refusal(tools=[WEATHER], tool_choice=given).report.param == param


def test_required_without_a_tool_is_refused() -> None:
    assert refusal(tools=[{"type": "web_search"}], tool_choice="required").report.param == "tool_choice"


def test_text_format_and_its_strictness() -> None:
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    assert request(text={"format": wanted}).output_format == JsonSchema(schema, "answer", True)
    assert request(text={"format": {"type": "json_object"}}).output_format == JsonObject()
    assert request(text={"format": {"type": "text"}, "verbosity": "low"}).output_format is None


def test_two_output_formats_are_refused() -> None:
    both = {"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}}
    assert refusal(**both).report.param == "text.format"


def test_limits_sampling_and_extensions_reach_the_request() -> None:
    made = request(
        max_output_tokens=9,
        temperature=0.5,
        top_k=4,
        min_p=0.1,
        seed=7,
        logit_bias={"5": -1},
        parallel_tool_calls=False,
        enable_thinking=False,
        thinking_budget=3,
        chat_template_kwargs={"a": 1},
        adapter_path="mine",
        tool_parser="hermes",
        truncation="auto",
        stop="END",
    )
    assert (made.max_tokens, made.parallel_tool_calls, made.stop) == (9, False, ("END",))
    sampling = made.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0.5, 4, 0.1, 7)
    assert sampling.logit_bias == {5: -1}
    assert (made.thinking.enabled, made.thinking.budget) == (False, 3)
    assert (made.template_kwargs, made.adapter, made.tool_format) == ({"a": 1}, "mine", "hermes")
    assert made.overflow == "truncate"


def test_compaction_asks_for_a_summary() -> None:
    assert (
        request(context_management=[{"type": "compaction", "compact_threshold": 1000}]).overflow
        == "summarize"
    )


def test_a_configuration_update_sets_effort_and_format_from_its_place_on() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    first: Any = {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": schema}}
    asked: Any = {"role": "user", "content": "Hi"}
    made = request(input=[first, asked], reasoning={"effort": "high"})
    assert made.thinking.effort == "low"
    assert made.output_format is not None
    back = first | {"reasoning": {"effort": "high"}, "text": {"format": {"type": "text"}}}
    made = request(input=[first, back, asked])
    assert (made.thinking.effort, made.output_format, len(made.messages or ())) == ("high", None, 1)
    bad = {"type": "configuration_update", "reasoning": {"effort": 3}}
    assert refusal(input=[asked, bad]).report.param == "input[1].reasoning.effort"


TRIGGER: Any = {"type": "compaction_trigger"}


def test_a_compaction_trigger_is_answered_by_a_summary_alone() -> None:
    decoded = decode(input=[{"role": "user", "content": "Hi"}, TRIGGER])
    [asked] = decoded.requests
    assert asked.messages is not None
    assert "Summarize" in str(asked.messages[-1].parts)
    parts = (PartStarted(0, 0, "text"), PartDelta(0, 0, "They met."), PartEnded(0, 0))
    events = run(decoded, *parts, Finished(0, "stop"))
    assert [each["type"] for each in events[2:-1]] == [
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]
    [item] = events[-1]["response"]["output"]
    assert (item["type"], unseal(item["encrypted_content"])) == ("compaction", "They met.")
    said = {"role": "assistant", "content": "Ho"}
    made = messages({"role": "user", "content": "Hi"}, said, TRIGGER, item, {"role": "user", "content": "On"})
    assert [message.role for message in made] == ["user", "user", "user"]
    assert refusal(input=[TRIGGER, {"role": "user", "content": "Hi"}]).report.param == "input[1]"


def test_logprobs_are_asked_for_by_include() -> None:
    assert request().logprobs is None
    assert request(include=["message.output_text.logprobs"]).logprobs == 0
    assert request(include=["message.output_text.logprobs"], top_logprobs=5).logprobs == 5


def test_a_stored_response_comes_before_the_input() -> None:
    made = request(previous_response_id="resp_1", instructions="Now.").messages
    assert made is not None
    assert [message.role for message in made] == ["system", "user", "assistant", "user"]


def test_a_conversation_comes_before_the_input() -> None:
    for conversation in ("conv_1", {"id": "conv_1"}):
        made = request(conversation=conversation).messages
        assert made is not None
        assert made[0] == Message("user", (Text("In conv_1"),))


def test_references_stand_for_stored_items() -> None:
    assert messages({"type": "item_reference", "id": "msg_9"}, {"id": "msg_8"}) == (
        Message("user", (Text("Item msg_9"),)),
        Message("user", (Text("Item msg_8"),)),
    )


def test_sealed_reasoning_and_summaries_come_back() -> None:
    made = messages(
        {"type": "compaction", "encrypted_content": seal("They met.")},
        {"type": "reasoning", "summary": [], "encrypted_content": seal("Deep thought")},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA-not-ours"},
        {"type": "compaction", "encrypted_content": "gAAAA-not-ours"},
    )
    assert made[0].role == "user"
    assert made[0].parts[0] == Text("Summary of the conversation before this point:\n\nThey met.")
    assert made[1].parts == (Reasoning("Deep thought"),)


def test_images_and_files_of_text() -> None:
    data = base64.b64encode(b"print(1)").decode()
    [message] = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"},
                {"type": "input_file", "filename": "a.py", "file_data": f"data:text/x-python;base64,{data}"},
            ],
        }
    )
    image = Image(Url("https://example.org/a.png"), "low", field="input[0].content[0]")
    assert message.parts == (image, Text("a.py:\nprint(1)", apart=True))


def test_media_options_reach_the_images() -> None:
    content = [{"type": "input_image", "image_url": "https://example.org/a.png"}]
    [message] = messages({"role": "user", "content": content}, max_pixels=100, resize_shape=[8])
    [image] = message.parts
    assert isinstance(image, Image)
    assert (image.max_pixels, image.resize) == (100, (8, 8))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "nonsense"}]}, "input[0].type"),
        ({"input": [{"type": 3}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -5}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "no name"}]}, "tools[0].name"),
        ({"tools": [FUNCTION | {"parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [MCP | {"allowed_tools": {"read_only": True}}]}, "tools[0].allowed_tools.read_only"),
        ({"tools": [MCP | {"allowed_tools": []}]}, "tools[0].allowed_tools"),
        ({"tools": [MCP | {"allowed_tools": {"tool_names": []}}]}, "tools[0].allowed_tools.tool_names"),
        ({"tools": [MCP | {"headers": {"x-key": "k"}}]}, "tools[0].headers"),
        ({"tools": [MCP | {"authorization": "t"}]}, "tools[0].authorization"),
        ({"tools": [MCP | {"tunnel_id": "t"}]}, "tools[0].tunnel_id"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).report.param == param


def test_bookkeeping_is_accepted_and_given_back() -> None:
    decoded = decode(
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        service_tier="flex",
        metadata={"a": "b"},
        stream_options={"include_obfuscation": False},
        client_metadata={"x": 1},
        prompt_cache_retention="24h",
    )
    draft = decoded.shape.draft
    assert decoded.ignored == ()
    assert (draft.user, draft.safety_identifier, draft.prompt_cache_key) == ("u", "s", "k")
    assert (draft.service_tier, draft.metadata) == ("flex", {"a": "b"})


def test_fields_that_no_contract_knows_are_ignored_and_named() -> None:
    assert decode(frobnicate=1).ignored == ("frobnicate",)


def run(decoded: Decoded[ResponseShape], *events: Event) -> list[dict[str, Any]]:
    encoder = DIALECT.encoder(decoded.shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    pieces = [encoder.start([Accepted(prompt_tokens=1)]), *map(encoder.event, events)]
    return payloads(b"".join(pieces))


def call(name: str, arguments: str) -> list[Event]:
    middle = len(arguments) // 2
    return [
        PartStarted(0, 0, "tool_call", "call_1", name),
        PartDelta(0, 0, arguments[:middle]),
        PartDelta(0, 0, arguments[middle:]),
        PartEnded(0, 0),
        Finished(0, "tool_calls"),
    ]


def test_a_call_of_a_custom_tool_has_its_own_item_and_events() -> None:
    decoded = decode(tools=[{"type": "custom", "name": "patch"}])
    sent = run(decoded, *call("patch", '{"input": "a\\nb"}'))
    assert [event["type"] for event in sent[2:]] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert sent[-1]["response"]["output"][0] == {
        "id": "ctc_r_0",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "patch",
        "input": "a\nb",
    }


def test_a_call_within_a_namespace_names_it() -> None:
    decoded = decode(tools=[{"type": "namespace", "name": "crm", "description": "", "tools": [WEATHER]}])
    item = run(decoded, *call("crm__get_weather", "{}"))[-1]["response"]["output"][0]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "get_weather", "crm")


def test_calls_of_shells_and_patches_are_their_own_items() -> None:
    decoded = decode(tools=[{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}])
    local = run(decoded, *call("local_shell", '{"command": ["ls"], "timeout_ms": 5}'))[-1]["response"][
        "output"
    ][0]
    assert local["type"] == "local_shell_call"
    assert local["action"] == {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}
    shell = run(decoded, *call("shell", '{"commands": ["ls"]}'))[-1]["response"]["output"][0]
    assert (shell["type"], shell["action"]["commands"]) == ("shell_call", ["ls"])
    events = run(decoded, *call("shell", '{"commands": ["ls", "id"]}'))
    told = [each for each in events if "shell_call_command" in each["type"]]
    assert [each["type"].rpartition(".")[2] for each in told] == ["added", "delta", "done"] * 2
    assert [(each["command_index"], each["command"]) for each in told[2::3]] == [(0, "ls"), (1, "id")]
    patch = run(decoded, *call("apply_patch", '{"type": "delete_file", "path": "a"}'))[-1]["response"][
        "output"
    ][0]
    assert patch["operation"] == {"type": "delete_file", "path": "a"}


def think(decoded: Decoded[ResponseShape]) -> list[dict[str, Any]]:
    return run(
        decoded, PartStarted(0, 0, "reasoning"), PartDelta(0, 0, "Hm"), PartEnded(0, 0), Finished(0, "stop")
    )


def test_reasoning_is_a_summary_for_clients_that_ask_for_one() -> None:
    sent = think(decode(reasoning={"effort": "high", "summary": "auto"}))
    assert [event["type"] for event in sent[3:-2]] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    assert sent[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm"}]


def test_reasoning_is_sealed_for_clients_that_ask_for_it_and_can_be_hidden() -> None:
    item = think(decode(include=["reasoning.encrypted_content"]))[-1]["response"]["output"][0]
    assert item["encrypted_content"] == seal("Hm")
    assert think(decode(include_reasoning=False))[-1]["response"]["output"] == []


def test_a_tool_is_repeated_with_all_its_fields() -> None:
    assert decode(tools=[WEATHER]).shape.draft.tools == [WEATHER | {"description": None, "strict": False}]
    assert request(tools=[WEATHER]).tools == (Tool("get_weather", None, {"type": "object"}),)


def test_a_compaction_names_its_model() -> None:
    with pytest.raises(ServerError) as caught:
        CompactionDialect().decode(b'{"input": "Hi"}', DecodeContext())
    assert caught.value.report.param == "model"


# Open Responses (2026-04-24): every field of a response is there, and these are never null.
REQUIRED = (
    *("id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation"),
    *("parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("temperature", "store", "background", "service_tier", "metadata"),
)
NULLABLE = (
    *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning"),
    *("usage", "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"),
)


def test_a_response_has_every_field_of_open_responses() -> None:
    for event in run(decode(tools=[WEATHER]), *call("get_weather", "{}")):
        if "response" in event:
            response = event["response"]
            assert {*REQUIRED, *NULLABLE} <= set(response)
            assert [name for name in REQUIRED if response[name] is None] == []
            assert {"type", "name", "description", "parameters", "strict"} == set(response["tools"][0])


def test_a_keep_alive_of_a_running_response_is_an_event_since_clients_count_those() -> None:
    encoder = DIALECT.encoder(decode().shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    numbers = payloads(encoder.start([Accepted(prompt_tokens=1)]))
    [event] = payloads(encoder.keep_alive())
    assert (event["type"], event["sequence_number"]) == ("response.in_progress", len(numbers))


def test_a_failure_before_anything_was_sent_is_an_error_event() -> None:
    encoder = DIALECT.encoder(decode().shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    assert encoder.keep_alive().startswith(b":")
    report = ErrorReport(kind="context_length_exceeded", message="Too long.", param="input")
    [event] = payloads(encoder.failed(report) + encoder.end())
    assert event == {
        "type": "error",
        "sequence_number": 0,
        "code": "context_length_exceeded",
        "message": "Too long.",
        "param": "input",
    }


PICTURE = "data:image/png;base64,iVBORw0KGgo="


def test_messages_and_parts_of_chat_are_read_as_mlx_vlm_reads_them() -> None:
    found = messages(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                {"type": "image_url", "image_url": "https://example.org/a.png"},
                {"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}},
                {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
                {"type": "video", "video": {"url": "https://example.org/b.mp4"}, "fps": 2, "max_frames": 8},
                {"type": "input_audio", "input_audio": "/sounds/a.wav"},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    )
    user, assistant, tool = found
    assert [type(part).__name__ for part in user.parts] == [
        "Text", "Image", "Image", "Audio", "Video", "Video", "Audio",
    ]  # fmt: skip
    assert user.parts[1].detail == "low"
    assert user.parts[5] == Video(Url("https://example.org/b.mp4"), 2, 8, "input[0].content[5]")
    assert user.parts[6].source == Url("/sounds/a.wav")
    assert assistant.parts == (Reasoning("Hm."), ToolCall("c1", "f", "{}"))
    assert tool.parts == (ToolResult("c1", (Text("done"),), "f"),)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "tool", "content": "x"}, "input[0].tool_call_id"),
        ({"role": "assistant", "content": None}, "input[0].content"),
        ({"role": "user", "content": None}, "input[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "video_url", "video_url": ""}]},
            "input[0].content[0].video_url",
        ),
    ],
)
def test_what_is_missing_in_them_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(ServerError) as refused:
        messages(item)
    assert refused.value.report.param == param
