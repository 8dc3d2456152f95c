"""A key that no contract knows is named with its path, wherever in the settings it stands; talk is left alone."""

import json
from typing import Any, Final

import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.chat import dialect as openai_chat
from pippin.api.dialects.completions import dialect as openai_completions
from pippin.api.dialects.messages import dialect as anthropic_messages
from pippin.api.dialects.responses import dialect as openai_responses
from pippin.api.dialects.shared.fields import MOST_NAMED, Contract
from pippin.api.kinds import embeddings, reranking, speech
from pippin.core.errors import ServerError

SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "string", "x-note": 1}}}
NOTED: Final = {"role": "user", "content": [{"type": "text", "text": "Hi", "foo": 1}], "foo": 1}
DIALECTS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "chat": (openai_chat.dialect, {"model": "m", "messages": [NOTED]}),
    "completions": (openai_completions.dialect, {"model": "m", "prompt": "Hi"}),
    "responses": (
        openai_responses.dialect,
        {
            "model": "m",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi", "foo": 1}], "foo": 1}
            ],
        },
    ),
    "messages": (
        anthropic_messages.dialect,
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [NOTED],
            "system": [{"type": "text", "text": "S", "foo": 1}],
        },
    ),
}
FUNCTION: Final = {"name": "look", "parameters": SCHEMA}
CHAT_TOOL: Final = {"type": "function", "function": FUNCTION}
TOOL: Final = {"type": "function", **FUNCTION}
OWN_TOOL: Final = {"name": "look", "input_schema": SCHEMA}


def ignored(dialect: str, **fields: Any) -> tuple[str, ...]:
    decoder, body = DIALECTS[dialect]
    found: tuple[str, ...] = decoder.contract.decode(json.dumps(body | fields).encode())[1]
    return found


@pytest.mark.parametrize(
    ("dialect", "fields", "path"),
    [
        ("chat", {"stream_options": {"include_usage": True, "foo": 1}}, "stream_options.foo"),
        ("completions", {"stream_options": {"foo": 1}}, "stream_options.foo"),
        ("chat", {"response_format": {"type": "json_object", "foo": 1}}, "response_format.foo"),
        (
            "chat",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "foo": 1},
                }
            },
            "response_format.json_schema.foo",
        ),
        ("chat", {"tools": [CHAT_TOOL | {"foo": 1}]}, "tools[].foo"),
        (
            "chat",
            {"tools": [{"type": "function", "function": FUNCTION | {"foo": 1}}]},
            "tools[].function.foo",
        ),
        (
            "chat",
            {
                "tools": [CHAT_TOOL],
                "tool_choice": {"type": "function", "function": {"name": "look", "foo": 1}},
            },
            "tool_choice.function.foo",
        ),
        ("chat", {"structured_outputs": {"regex": "a", "foo": 1}}, "structured_outputs.foo"),
        ("chat", {"reasoning": {"effort": "low", "foo": 1}}, "reasoning.foo"),
        ("responses", {"reasoning": {"effort": "low", "foo": 1}}, "reasoning.foo"),
        ("responses", {"text": {"foo": 1}}, "text.foo"),
        ("responses", {"text": {"format": {"type": "text", "foo": 1}}}, "text.format.foo"),
        ("responses", {"conversation": {"id": "conv_1", "foo": 1}}, "conversation.foo"),
        ("responses", {"context_management": [{"type": "compaction", "foo": 1}]}, "context_management[].foo"),
        ("responses", {"tools": [TOOL | {"foo": 1}]}, "tools[].foo"),
        (
            "responses",
            {"tools": [{"type": "custom", "name": "c", "format": {"type": "text", "foo": 1}}]},
            "tools[].format.foo",
        ),
        (
            "responses",
            {"tools": [{"type": "namespace", "name": "n", "description": "", "tools": [TOOL | {"foo": 1}]}]},
            "tools[].tools[].foo",
        ),
        (
            "responses",
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look", "foo": 1}},
            "tool_choice.foo",
        ),
        ("messages", {"thinking": {"type": "adaptive", "foo": 1}}, "thinking.foo"),
        ("messages", {"tools": [OWN_TOOL | {"foo": 1}]}, "tools[].foo"),
        ("messages", {"tool_choice": {"type": "auto", "foo": 1}}, "tool_choice.foo"),
        ("messages", {"output_config": {"effort": "low", "foo": 1}}, "output_config.foo"),
        (
            "messages",
            {
                "tools": [
                    {
                        "type": "mcp_toolset",
                        "mcp_server_name": "a",
                        "configs": {"b": {"enabled": True, "foo": 1}},
                    }
                ]
            },
            "tools[].configs.*.foo",
        ),
    ],
)
def test_an_unknown_key_is_named_by_its_path(dialect: str, fields: dict[str, Any], path: str) -> None:
    assert ignored(dialect, **fields) == (path,)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_is_named_in_the_conversation(dialect: str) -> None:
    assert ignored(dialect) == ()


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"tools": [CHAT_TOOL], "response_format": {"type": "json_object", "schema": SCHEMA}}),
        (
            "chat",
            {"chat_template_kwargs": {"foo": {"bar": 1}}, "metadata": {"foo": "1"}, "logit_bias": {"7": 1}},
        ),
        ("responses", {"tools": [TOOL], "metadata": {"foo": "1"}}),
        ("responses", {"tools": [TOOL | {"defer_loading": True, "output_schema": SCHEMA}]}),
        ("responses", {"tools": [{"type": "web_search", "filters": {"foo": 1}}]}),
        (
            "messages",
            {"tools": [OWN_TOOL | {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "type": "custom"}]},
        ),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9, "display": "updates"}}),
    ],
)
def test_what_is_known_or_handed_on_is_not_named(dialect: str, fields: dict[str, Any]) -> None:
    assert ignored(dialect, **fields) == ()


def test_many_unknown_keys_are_named_up_to_a_number() -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}", "same": 1, f"x{n}": 1}} for n in range(60)]
    named = ignored("chat", tools=tools, frobnicate=1)
    assert len(named) == len(set(named)) == MOST_NAMED
    assert named[:2] == ("frobnicate", "tools[].function.same")


def test_a_long_unknown_key_is_cut() -> None:
    [named] = ignored("chat", stream_options={"y" * 9999: 1})
    assert named == "stream_options." + "y" * 64


@pytest.mark.parametrize("value", ["1e999", "[" * 2000 + "]" * 2000, '"\udcff"'])
def test_the_value_of_an_unknown_key_must_be_readable(value: str) -> None:
    body = f'{{"model": "m", "messages": [], "stream_options": {{"foo": {value}}}}}'
    with pytest.raises(ServerError) as refused:
        openai_chat.dialect.decode(body.encode(errors="surrogateescape"), DecodeContext())
    assert refused.value.report.status == 400


INPUT: Final = {"input": "Hi"}
RANKED: Final = {"query": "Hi", "documents": ["Hi"]}
COMPLETIONS: Final = openai_completions.dialect.contract


@pytest.mark.parametrize(
    ("contract", "body", "name"),
    [
        (COMPLETIONS, {"prompt": "Hi"}, "add_special_tokens"),
        *((embeddings.CONTRACT, INPUT, name) for name in ("add_special_tokens", "normalize", "normalized")),
        *((reranking.RERANK, RANKED, name) for name in ("activation", "use_activation")),
    ],
)
def test_a_field_that_is_true_unless_it_is_sent_may_be_true_and_not_false(
    contract: Contract[Any], body: dict[str, Any], name: str
) -> None:
    for value in (True, None):
        assert contract.decode(json.dumps({**body, name: value}).encode())[1] == ()
    with pytest.raises(ServerError, match=f"`{name}` is not supported"):
        contract.decode(json.dumps({**body, name: False}).encode())


@pytest.mark.parametrize(
    ("contract", "body", "name", "value"),
    [
        *((embeddings.CONTRACT, INPUT, name, "query") for name in ("input_type", "prompt_name", "task")),
        (embeddings.CONTRACT, INPUT, "output_dimension", 5),
        (embeddings.CONTRACT, INPUT, "late_chunking", True),
        (reranking.RERANK, RANKED, "top_k", 2),
        (reranking.RERANK, RANKED, "raw_scores", True),
        (speech.CONTRACT, INPUT, "sample_rate", 8000),
        (speech.CONTRACT, INPUT, "language", "en"),
    ],
)
def test_what_other_servers_take_and_changes_an_answer_is_refused_by_name(
    contract: Contract[Any], body: dict[str, Any], name: str, value: Any
) -> None:
    with pytest.raises(ServerError, match=f"`{name}` is not supported"):
        contract.decode(json.dumps({**body, name: value}).encode())
