"""No body makes a dialect fail otherwise than by a `ServerError` that is the client's to mend."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.api.dialects.base import AnyDialect, DecodeContext
from pippin.api.dialects.gemini.dialect import GeminiDialect
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.responses.dialect import CompactionDialect, ResponsesDialect
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest

WORDS = (
    *("type", "role", "content", "id", "name", "text", "input", "call_id", "output", "arguments", "action"),
    *(
        "tools",
        "mode",
        "source",
        "data",
        "url",
        "summary",
        "operation",
        "encrypted_content",
        "item_reference",
    ),
    *(
        "message",
        "function",
        "function_call",
        "function_call_output",
        "custom",
        "custom_tool_call",
        "namespace",
    ),
    *("reasoning", "local_shell_call", "shell_call_output", "apply_patch_call", "mcp_call", "compaction"),
    *("input_text", "input_image", "input_file", "output_text", "image_url", "file_data", "allowed_tools"),
    *("user", "assistant", "system", "tool_result", "tool_use", "thinking", "document", "image", "base64"),
    *("tool_use_id", "signature", "title", "input_schema", "json_schema", "schema", "format", "auto", "any"),
    *("contents", "parts", "inlineData", "mimeType", "functionCall", "functionResponse", "args", "response"),
    *("functionDeclarations", "parameters", "thoughtSignature", "generation_config", "fileData", "model"),
    *("search_result", "redacted_thinking", "cache_control", "is_error", "tool_reference", "tool_name"),
)
word = st.sampled_from(WORDS)
leaf = (
    st.none() | st.booleans() | st.integers(-3, 70_000) | st.floats(allow_nan=False) | word | st.just("AAAA")
)
value = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(word, inner, max_size=5), max_leaves=12
)
ITEM: dict[str, Any] = {"type": "message", "role": "user", "content": "Hi"}
CONTENT: dict[str, Any] = {"role": "user", "parts": [{"text": "Hi"}]}


def dialects() -> list[AnyDialect]:
    return [ResponsesDialect(), MessagesDialect(), CompactionDialect(), GeminiDialect()]


def attempt(dialect: AnyDialect, body: bytes) -> None:
    try:
        decoded = dialect.decode(body, DecodeContext())
    except ServerError as error:
        status = error.report.status
    else:
        status = 400
        check(decoded.requests)
    assert 400 <= status < 500


def check(requests: tuple[GenerationRequest, ...]) -> None:
    """They can cross to a worker."""
    for request in requests:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest) == request


@pytest.mark.parametrize("dialect", dialects(), ids=lambda dialect: dialect.name)
@given(data=st.data())
def test_fields_of_any_value(dialect: AnyDialect, data: st.DataObject) -> None:
    names = sorted(field.encode_name for field in msgspec.structs.fields(dialect.contract.body))
    body = {"model": "m", "max_tokens": 5, "messages": [ITEM], "input": [ITEM], "contents": [CONTENT]}
    if dialect.name != "messages":
        del body["messages"], body["max_tokens"]
    body |= data.draw(st.dictionaries(st.sampled_from(names), value, max_size=4))
    attempt(dialect, json.dumps(body).encode())


@pytest.mark.parametrize("dialect", dialects(), ids=lambda dialect: dialect.name)
@given(items=st.lists(st.dictionaries(word, value, max_size=6), min_size=1, max_size=4), data=st.data())
def test_items_and_blocks_of_any_shape(
    dialect: AnyDialect, items: list[dict[str, Any]], data: st.DataObject
) -> None:
    for item in items:
        item["type"] = data.draw(word)
    if dialect.name == "messages":
        role = data.draw(st.sampled_from(["user", "assistant", "system"]))
        body: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": role, "content": items}]}
        body["tools"] = items if data.draw(st.booleans()) else []
    else:
        body = {"model": "m", "input": items, "contents": [{"role": items[0].get("role"), "parts": items}]}
        if data.draw(st.booleans()):
            body |= {"tools": items, "tool_choice": items[0]}
    attempt(dialect, json.dumps(body).encode())


@pytest.mark.parametrize("dialect", dialects(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\xff\xfe",
        b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "m", "max_tokens": 1, "messages": [], "tools": ['
        + b'{"a":' * 3000
        + b"1"
        + b"}" * 3000
        + b"]}",
        b'{"input": "\\ud800"}',
        b'{"input": "x", "max_output_tokens": 1e400}',
        b'{"input": "x", "tools": [{"type": "function", "name": "x", "parameters": {"a": 99999999999999999999}}]}',
        b'{"input": "x", "chat_template_kwargs": {"a": [99999999999999999999]}}',
        b'{"input": "x", "max_output_tokens": 99999999999999999999999}',
        b'{"model": "m", "input": "x", "messages": [], "nobody_knows": {"\xb1": 1}}',
        b'{"model": "m", "input": "x", "messages": [], "nobody_knows": "\xc3\x28"}',
        # What may be written otherwise comes first, and then what nobody can read.
        b"3.0 and more",
        b"null and more",
        b"1.0" + b"[" * 5000,
        b'{"a": 1} and more',
    ],
    ids=range(19),
)
def test_bodies_that_are_no_requests(dialect: AnyDialect, body: bytes) -> None:
    attempt(dialect, body)
