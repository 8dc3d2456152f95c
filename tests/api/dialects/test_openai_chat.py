"""What Chat Completions and Completions bodies mean, and which are refused, by name."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as CompletionParams

from pippin.api.dialects.base import AnyDialect, DecodeContext
from pippin.api.dialects.chat import dialect as openai_chat
from pippin.api.dialects.completions import dialect as openai_completions
from pippin.api.dialects.shared.engine_fields import parse_duration
from pippin.core.conversation import Image, Inline, Reasoning, Text, ToolCall, ToolResult, Url
from pippin.core.errors import ServerError
from pippin.core.requests import (
    Choice,
    GenerationRequest,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
)

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}


def chat(**fields: Any) -> GenerationRequest:
    body = {"model": "m", "messages": [USER]} | fields
    [request] = openai_chat.dialect.decode(json.dumps(body).encode(), DecodeContext()).requests
    return request


def complete(**fields: Any) -> tuple[GenerationRequest, ...]:
    body = {"model": "m", "prompt": "Hi"} | fields
    return openai_completions.dialect.decode(json.dumps(body).encode(), DecodeContext()).requests


def refusal(
    dialect: AnyDialect = openai_chat.dialect, raw: bytes | None = None, **fields: Any
) -> ServerError:
    base = (
        {"model": "m", "messages": [USER]}
        if dialect is openai_chat.dialect
        else {"model": "m", "prompt": "Hi"}
    )
    body = raw if raw is not None else json.dumps(base | fields).encode()
    with pytest.raises(ServerError) as caught:
        dialect.decode(body, DecodeContext())
    report = caught.value.report
    assert report.status == 400
    assert report.message.endswith((".", "?"))
    return caught.value


@pytest.mark.parametrize("name", sorted(ChatParams.__annotations__ | ChatParams.__mro__[0].__annotations__))
def test_every_documented_field_of_chat_is_honoured_accepted_or_refused(name: str) -> None:
    contract = openai_chat.dialect.contract
    assert name in {*contract.body.__struct_fields__, *contract.accepted, *contract.refused}


@pytest.mark.parametrize("name", sorted(CompletionParams.__annotations__))
def test_every_documented_field_of_completions_is_honoured_accepted_or_refused(name: str) -> None:
    contract = openai_completions.dialect.contract
    assert name in {*contract.body.__struct_fields__, *contract.accepted, *contract.refused}


@pytest.mark.parametrize("name", sorted(openai_chat.dialect.contract.refused))
def test_refused_fields_are_refused_by_name_unless_neutral(name: str) -> None:
    assert refusal(**{name: "x"}).report.param == name
    neutral: list[Any] = [None, False, [], 0, "", {}]
    for value in neutral:
        chat(**{name: value})


def test_a_web_search_with_its_defaults_is_refused_too() -> None:
    assert refusal(web_search_options={}).report.param == "web_search_options"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"messages": [{"role": "bot", "content": "x"}]},
            "`system`, `developer`, `user`, `assistant`, `tool`",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "picture"}]}]}, "`text`, `input_text`"),
        ({"response_format": {"type": "xml"}}, "`text`, `json_object`, `json_schema`, `regex`, `grammar`"),
        ({"reasoning_effort": "enormous"}, "`high`, `low`"),
        ({"tools": [{"type": "x"}]}, "`function`, `custom`, `mcp`"),
        ({"stream_options": {"include_usage": 3}}, None),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_those_that_are(
    fields: dict[str, Any], words: str | None
) -> None:
    message = refusal(**fields).report.message
    assert (words or "") in message
    assert ("it can be" in message) == (words is not None)


def test_calls_stay_text_where_that_is_asked_for() -> None:
    assert chat().read_calls
    assert chat(parse_tool_calls=True).read_calls
    assert not chat(parse_tool_calls=False).read_calls


@pytest.mark.parametrize(
    ("given", "shown"), [("auto", True), ("deepseek", True), ("parsed", True), ("hidden", False)]
)
def test_reasoning_is_read_apart_or_left_out(given: str, shown: bool) -> None:
    body = json.dumps({"model": "m", "messages": [USER], "reasoning_format": given})
    assert openai_chat.dialect.decode(body.encode(), DecodeContext()).shape.reasoning is shown


@pytest.mark.parametrize("given", ["none", "raw", "deepseek-legacy", "other"])
def test_reasoning_within_the_text_is_refused(given: str) -> None:
    assert refusal(reasoning_format=given).report.param == "reasoning_format"


def test_a_prediction_is_text_or_parts_of_it() -> None:
    assert chat(prediction={"type": "content", "content": "a b"}).prediction == "a b"
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert chat(prediction={"type": "content", "content": parts}).prediction == "a b"
    assert chat(prediction=None).prediction is None
    assert refusal(prediction={"type": "picture", "content": "a"}).report.param == "prediction.type"
    assert refusal(prediction={"type": "content", "content": 3}).report.param == "prediction.content"


@pytest.mark.parametrize("field", ["specprefill", "specprefill_keep_pct", "specprefill_backbone_pct"])
def test_sparse_prefill_is_refused_by_name(field: str) -> None:
    assert refusal(**{field: 1}).report.param == field
    chat(**{field: None})


def test_verbosity_reaches_the_template() -> None:
    assert chat(verbosity="low").template_kwargs == {"verbosity": "low"}
    assert chat(verbosity="low", chat_template_kwargs={"verbosity": "high"}).template_kwargs == {
        "verbosity": "high"
    }
    assert refusal(verbosity="much").report.param == "verbosity"


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": True},
        {"reasoning_effort": "low"},
        {"thinking_budget": 5},
        {"chat_template_kwargs": {"a": 1}},
        {"continue_final_message": True},
        {"tool_parser": "qwen"},
        {"max_pixels": 100},
    ],
)
def test_fields_of_conversations_are_refused_for_raw_prompts(fields: dict[str, Any]) -> None:
    assert refusal(openai_completions.dialect, **fields).report.param in fields
    assert complete(**dict.fromkeys(fields))


@pytest.mark.parametrize("name", sorted(openai_chat.dialect.contract.accepted))
def test_bookkeeping_fields_are_accepted(name: str) -> None:
    for value in ("x", 1, {"a": 1}, [1], True):
        assert chat(**{name: value}) == chat()


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0, 1.5, 2], [-0.1, 2.1, "hot", True]),
        ("top_p", [0, 1], [-0.1, 1.1]),
        ("top_k", [-1, 0, 40], [-2, 1.5, "x"]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("typical_p", [0, 1], [1.2]),
        ("top_n_sigma", [-1, 1.5], [-2]),
        ("p_less", [True, False, 0, 1], [2, "x"]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("repetition_penalty", [0, 1.1], [-1]),
        ("xtc_probability", [0, 1], [2]),
        ("seed", [0, -5, 2**63 - 1], [2**63, 1.5, "7"]),
        ("n", [1, 16], [0, 1025, -1, 10**9]),
        ("top_logprobs", [], [-1, 21]),
        ("max_tokens", [1, 4096], [0, -2, 1.5, "9", 10**12]),
        ("max_completion_tokens", [1, -1], [0]),
        ("logit_bias", [{"5": -100}, {}], [{"-5": 1}, {"x": 1}, {"5": 101}, [1]]),
        ("stop", ["a", ["a", "b"], [], None], ["", [""], ["a"] * 33, [1], "x" * 1025]),
        ("stop_token_ids", [[1, 2]], [[-1], [2**31], list(range(65))]),
        ("timeout", [1.5], [0, -1]),
        ("priority", [-3, 3], [2**31]),
        ("cache_salt", ["s"], ["", "x" * 513]),
        ("keep_alive", [5, -1, "5m", "1h30m", "0"], ["soon", "5 m", [1]]),
        ("reasoning_effort", ["none", "low", "xhigh"], ["enormous", 3]),
        ("thinking_budget", [0, 100], [-1]),
        ("resize_shape", [[224], [224, 448]], [[], [1, 2, 3], [0]]),
        ("min_pixels", [1], [0]),
        ("video_fps", [2.5], [0, 1000]),
        ("modalities", [["text"], None], [["audio"], ["text", "audio"]]),
        ("skip_special_tokens", [True, None], [False]),
        ("tool_argument_recovery", ["none"], ["repair"]),
        ("truncation", ["auto", "disabled"], ["middle"]),
        (
            "context_management",
            [[], [{"type": "compaction"}]],
            [[{"type": "x"}], [{"type": "compaction"}] * 2],
        ),
    ],
)
def test_numbers_and_words_are_held_to_their_range(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        chat(**{field: value})
    for value in bad:
        report = refusal(**{field: value}).report
        assert report.param is not None
        assert report.param.startswith(field)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400])
def test_numbers_that_are_none_are_refused(number: bytes) -> None:
    for field in (b"temperature", b"seed", b"user"):
        body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"%b":%b}' % (field, number)
        if not (field == b"user" and number[:1] in b"91"):
            refusal(raw=body)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   ",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b'{"model":"m"}',
        b'{"messages":[]}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":{}}',
        b'{"model":"m","messages":"hi"}',
        b'{"model":"m","messages":[{}]}',
        b'{"model":"m","messages":[null]}',
        b'{"model":"","messages":[{"role":"user","content":"x"}]}',
        b'{"model":7,"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"king","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user"}]}',
        b'{"model":"m","messages":[{"role":"user","content":null}]}',
        b'{"model":"m","messages":[{"role":"user","content":5}]}',
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}',
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"smell","smell":"x"}]}]}',
        b'{"model":"m","messages":[{"role":"tool","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"assistant"}]}',
        b"\xff\xfe",
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_malformed_bodies_are_400(raw: bytes) -> None:
    refusal(raw=raw)


def test_a_deep_schema_is_refused_before_anybody_walks_it() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert "nested" in refusal(tools=[tool]).report.message
    assert "nested" in refusal(chat_template_kwargs={"a": schema}).report.message


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)
)
def test_no_value_of_any_field_is_worse_than_a_400(value: Any) -> None:
    for name in ("tools", "messages", "response_format", "stop", "reasoning", "tool_choice", "logit_bias"):
        body = json.dumps({"model": "m", "messages": [USER], name: value}).encode()
        statuses = []
        try:
            openai_chat.dialect.decode(body, DecodeContext())
        except ServerError as error:
            statuses.append(error.report.status)
        assert statuses in ([], [400])


@given(st.binary(max_size=64))
def test_no_bytes_are_worse_than_a_400(raw: bytes) -> None:
    for dialect in (openai_chat.dialect, openai_completions.dialect):
        with pytest.raises(ServerError):
            dialect.decode(raw, DecodeContext())


def test_what_is_no_json_is_said_once_and_where() -> None:
    message = refusal(raw=b"{messages: []}").report.message
    assert message == "The request body is not valid JSON: object keys must be strings (byte 1)."
    message = refusal(raw=rb'{"model": "cut \ud83d"}').report.message
    assert message == "The request body is not valid JSON: a string is cut within a character (byte 15)."


def test_the_field_is_named_where_it_stands() -> None:
    report = refusal(messages=[USER, {"role": "user", "content": [{"type": "text", "text": 5}]}]).report
    assert report.param is not None
    assert report.param.startswith("messages[")
    assert refusal(raw=b'{"model":"m"}').report.param == "messages"


def test_messages_of_every_role_and_shape() -> None:
    request = chat(
        messages=[
            {"role": "system", "content": "S"},
            {"role": "developer", "content": [{"type": "text", "text": "D"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "t"}, {"type": "refusal", "refusal": "no"}],
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "look", "arguments": {"a": 2}}},
                ],
                "refusal": None,
                "audio": None,
                "annotations": [],
                "function_call": None,
            },
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
            {"role": "function", "name": "old", "content": "three"},
            {"role": "user", "content": "", "name": "Ann"},
        ]
    )
    assert request.messages is not None
    roles = [message.role for message in request.messages]
    assert roles == ["system", "developer", "user", "assistant", "tool", "tool", "tool", "user"]
    assert request.messages[3].parts == (
        Reasoning("hm"),
        Text("t"),
        Text("no", apart=True),
        ToolCall("c1", "look", '{"a":1}'),
        ToolCall("c2", "look", '{"a":2}'),
    )
    assert request.messages[5].parts == (ToolResult("c2", (Text("two"),)),)
    assert request.messages[7].parts == ()
    assert request.messages[7].name == "Ann"


def test_images_come_by_address_or_inside() -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    parts = [
        {"type": "image_url", "image_url": {"url": "https://a.example/i.png", "detail": "high"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "input_image", "image_url": "https://a.example/j.png"},
    ]
    request = chat(messages=[{"role": "user", "content": parts}], max_pixels=1000, resize_shape=[32])
    assert request.messages is not None
    images = request.messages[0].parts
    assert images[0] == Image(
        Url("https://a.example/i.png"), "high", None, 1000, (32, 32), "messages[0].content[0]"
    )
    assert isinstance(images[1], Image)
    assert images[1].source == Inline(b"\x89PNG", "image/png")
    assert isinstance(images[2], Image)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,abc"}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {}},
        {"type": "input_image", "file_id": "f"},
        {"type": "input_image"},
        {"type": "input_audio", "input_audio": {"data": "!", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "input_file", "file_id": "x"},
    ],
)
def test_media_that_can_not_be_had_is_refused_by_its_place(part: dict[str, Any]) -> None:
    report = refusal(messages=[{"role": "user", "content": [part]}]).report
    assert report.param is not None
    assert report.param.startswith("messages[")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "object"}},
                }
            },
            JsonSchema({"type": "object"}, "a", False),
        ),
        ({"guided_json": {"type": "array"}}, JsonSchema({"type": "array"}, None, False)),
        ({"guided_json": '{"type": "array"}'}, JsonSchema({"type": "array"}, None, False)),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Choice(("a", "b"))),
        ({"guided_regex": "a"}, Regex("a")),
        ({"regex": "a"}, Regex("a")),
        ({"guided_choice": ["x"]}, Choice(("x",))),
        ({"grammar": 'root ::= "a"'}, Grammar("gbnf", 'root ::= "a"')),
        ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"json_schema": {"type": "null"}}, JsonSchema({"type": "null"}, None, False)),
    ],
)
def test_output_formats_in_everybodys_words(fields: dict[str, Any], wanted: Any) -> None:
    assert chat(**fields).output_format == wanted
    [request] = complete(**fields)
    assert request.output_format == wanted


def test_only_one_output_format_may_be_asked_for() -> None:
    assert "one output format" in refusal(guided_regex="a", guided_choice=["a"]).report.message
    assert refusal(structured_outputs={}).report.param == "structured_outputs"
    assert refusal(guided_json="{not json").report.param == "guided_json"


def test_tools_and_the_choice_among_them() -> None:
    assert chat(tools=[TOOL]).tools[0].name == "look"
    assert chat(tools=[TOOL], tool_choice="none").tool_choice.mode == "none"
    assert chat(tools=[TOOL], tool_choice="required").tool_choice.names == ()
    named = chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}).tool_choice
    assert (named.mode, named.names) == ("required", ("look",))
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]}
    choice = chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).tool_choice
    assert (choice.mode, choice.names) == ("auto", ("look",))
    assert not chat(tools=[TOOL], parallel_tool_calls=False).parallel_tool_calls


@pytest.mark.parametrize(("asked", "of_named"), [(None, False), (True, True), (False, False)])
def test_a_named_tool_is_called_once_unless_more_is_asked_for(asked: bool | None, of_named: bool) -> None:
    by_name = {"type": "function", "function": {"name": "look"}}
    named = chat(tools=[TOOL], tool_choice=by_name, parallel_tool_calls=asked)
    required = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=asked)
    assert (named.parallel_tool_calls, required.parallel_tool_calls) == (of_named, asked is not False)


def test_no_tool_may_be_called_where_there_is_none() -> None:
    assert chat(tool_choice="none").tool_choice.mode == "none"  # what some clients send without tools


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "sometimes"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "look"}}},
        {"tools": [TOOL, TOOL]},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
        {"tools": [{"type": "function", "function": {"name": "x" * 65}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": 5}}}]},
        {"tools": [{"type": "function"}]},
    ],
)
def test_tools_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    refusal(**fields)


def test_thinking_in_everybodys_words() -> None:
    assert chat(enable_thinking=False).thinking.enabled is False
    assert chat(chat_template_kwargs={"enable_thinking": True}).thinking.enabled is True
    assert chat(reasoning_effort="none").thinking.enabled is False
    assert chat(reasoning_effort="high").thinking.effort == "high"
    assert chat(reasoning={"effort": "low", "max_tokens": 5}).thinking.budget == 5
    assert chat(reasoning=False).thinking.enabled is False
    assert chat(reasoning="off").thinking.enabled is False
    assert chat(thinking_token_budget=9).thinking.budget == 9
    assert chat(thinking_start_token="<a>", thinking_end_token="</a>").thinking.end_marker == "</a>"


def test_template_variables_of_the_server_can_not_be_set() -> None:
    assert chat(chat_template_kwargs={"color": "red"}).template_kwargs == {"color": "red"}
    for name in ("messages", "tools", "chat_template", "add_generation_prompt"):
        assert refusal(chat_template_kwargs={name: 1}).report.param == f"chat_template_kwargs.{name}"


def test_a_document_is_refused_under_its_own_name() -> None:
    assert refusal(documents=[{"number": 2**70}]).report.param == "documents"


@pytest.mark.parametrize("thinking", ["Hm.", [{"type": "text", "text": "H"}, {"type": "text", "text": "m."}]])
def test_a_thinking_part_is_reasoning_in_anthropics_and_in_mistrals_form(thinking: Any) -> None:
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "So."}]
    request = chat(messages=[USER, {"role": "assistant", "content": parts}, USER])
    assert request.messages is not None
    assert request.messages[1].parts == (Reasoning("Hm."), Text("So."))


def test_a_prefill_is_continued() -> None:
    last = {"role": "assistant", "content": "So"}
    assert chat(
        messages=[USER, last], continue_final_message=True, add_generation_prompt=False
    ).continue_final
    assert chat(messages=[USER, last | {"partial": True}]).continue_final
    assert chat(messages=[USER, last | {"prefix": True}]).continue_final
    assert not chat(messages=[USER, last]).continue_final
    refusal(continue_final_message=True)
    refusal(messages=[USER, last], continue_final_message=True, add_generation_prompt=True)
    refusal(add_generation_prompt=False)


def test_what_the_other_fields_come_to() -> None:
    request = chat(
        max_tokens=5,
        max_completion_tokens=7,
        logprobs=True,
        top_logprobs=3,
        priority=2,
        adapters="lora-a",
        keep_alive="5m",
        context_management=[],
        top_p=0,
        repeat_penalty=0,
        repeat_last_n=-1,
        logit_bias={"7": -1.5},
    )
    assert (request.max_tokens, request.logprobs, request.priority) == (7, 3, -2)
    assert (request.adapter, request.keep_alive, request.overflow) == ("lora-a", 300.0, "error")
    sampling = request.sampling
    assert (sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (None, 1, 1.0)
    assert sampling.logit_bias == {7: -1.5}
    assert chat(context_management=[{"type": "compaction"}]).overflow == "summarize"
    assert chat(truncation="auto").overflow == "truncate"
    refusal(context_management=[{"type": "compaction", "compact_threshold": 5}])
    refusal(top_logprobs=3)


def test_every_shape_of_prompt() -> None:
    assert [request.prompt for request in complete(prompt="a")] == ["a"]
    assert [request.prompt for request in complete(prompt=["a", "b"])] == ["a", "b"]
    assert [request.prompt for request in complete(prompt=[1, 2])] == [(1, 2)]
    assert [request.prompt for request in complete(prompt=[[1], [2, 3]])] == [(1,), (2, 3)]
    for bad in ("", [], [[]], [""], ["a", 1], [1, "a"], [-1], [[2**48]], {"a": 1}, None, 5, ["a"] * 513):
        refusal(openai_completions.dialect, prompt=bad)


def test_scores_of_a_prompt_are_asked_for_with_echo_and_no_new_tokens() -> None:
    [request] = complete(echo=True, max_tokens=0, logprobs=1)
    assert (request.max_tokens, request.logprobs, request.prompt_logprobs, request.echo) == (0, 1, 1, True)
    [plain] = complete()
    assert (plain.max_tokens, plain.prompt_logprobs) == (16, None)
    refusal(openai_completions.dialect, max_tokens=0)


def test_as_many_are_sent_as_run() -> None:
    [request] = complete(n=2, best_of=2)
    assert request.n == 2
    refusal(openai_completions.dialect, n=2, best_of=4)
    refusal(openai_completions.dialect, best_of=2)
    refusal(openai_completions.dialect, n=10**12)
    refusal(openai_completions.dialect, n=16, prompt=["a"] * 100)
    refusal(openai_completions.dialect, suffix="x", prompt=[1, 2])


def test_a_request_survives_the_link_to_the_worker() -> None:
    request = chat(tools=[TOOL], guided_regex="a", logit_bias={"5": 1}, chat_template_kwargs={"a": [1, None]})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest) == request


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1", -1),
        ("500ms", 0.5),
        ("", None),
        ("m5", None),
        ("5mm", None),
    ],
)
def test_durations_are_read_as_ollama_writes_them(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"a": [1] * 128}, "more than 128 values"),
        ({str(number): {"x": 1, "y": 2} for number in range(50)}, "more than 128 values"),
        ({"a": "x" * (16 << 10)}, "larger than 16384 bytes"),
        ({"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}, "more than 16 levels"),
    ],
)
def test_variables_of_a_template_are_few_flat_and_small(variables: dict[str, Any], words: str) -> None:
    report = refusal(chat_template_kwargs=variables).report
    assert (report.status, report.param) == (400, "chat_template_kwargs")
    assert words in report.message


def test_variables_of_a_template_may_be_as_many_as_a_template_has() -> None:
    variables = {str(number): [1] for number in range(60)}
    assert chat(chat_template_kwargs=variables).template_kwargs == variables
