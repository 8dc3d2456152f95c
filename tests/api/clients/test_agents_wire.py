"""Tool loops and thinking through real workers: the `openai` and `anthropic` clients against a scripted model."""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.api.scripted_server import scripted_server

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RULES: tuple[dict[str, Any], ...] = (
    {"when": {"tool_result": "Rain"}, "say": "Take an umbrella.", "cached_tokens": 4},
    {
        "when": {"user": "Weather"},
        "think": "I need to look.",
        "say": "Let me see.",
        "calls": [{"name": "get_weather", "arguments": {"city": "Ulm"}}],
    },
    {"when": {"user": "Patch"}, "calls": [{"name": "apply", "arguments": {"input": "*** Begin\n+1"}}]},
    {"when": {"user": "Count"}, "say": "one two three four five six"},
)
HI: Any = [{"role": "user", "content": "Weather?"}]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scripted_server(tmp_path_factory.mktemp("script"), *RULES) as url:
        yield url


def test_a_responses_tool_loop_by_previous_response(openai_client: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}
    with openai_client.responses.stream(model="scripted", input="Weather?", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call: Any = first.output[-1]
    assert call.arguments == '{"city": "Ulm"}'
    second = openai_client.responses.create(
        model="scripted",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}],
        tools=[tool],
    )
    assert second.output_text == "Take an umbrella."
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == 4


def test_a_custom_tool_is_called_with_plain_text(openai_client: OpenAI) -> None:
    tool: Any = {"type": "custom", "name": "apply", "description": "Applies a patch."}
    with openai_client.responses.stream(model="scripted", input="Patch", tools=[tool]) as stream:
        response = stream.get_final_response()
    [call] = response.output
    assert call.type == "custom_tool_call"
    assert call.input == "*** Begin\n+1"


def test_limits_and_counts_of_responses(openai_client: OpenAI) -> None:
    counted = openai_client.responses.input_tokens.count(model="scripted", input="Count").input_tokens
    cut = openai_client.responses.create(model="scripted", input="Count", max_output_tokens=2)
    assert cut.status == "incomplete"
    assert cut.usage is not None
    assert (cut.usage.input_tokens, cut.usage.output_tokens) == (counted, 2)


def test_a_messages_tool_loop_with_thinking(anthropic_client: Anthropic) -> None:
    tools: Any = [{"name": "get_weather", "input_schema": WEATHER}]
    given: Any = {"model": "claude-any", "max_tokens": 100, "tools": tools}
    with anthropic_client.messages.stream(
        messages=HI, thinking={"type": "enabled", "budget_tokens": 1024}, **given
    ) as stream:
        first = stream.get_final_message()
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.stop_reason == "tool_use"
    call: Any = first.content[-1]
    assert call.input == {"city": "Ulm"}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain"}
    messages: Any = [*HI, first.to_param(), {"role": "user", "content": [result]}]
    counted = anthropic_client.messages.count_tokens(model="claude-any", messages=messages, tools=tools)
    second = anthropic_client.messages.create(messages=messages, **given)
    assert second.content[0].type == "text"
    assert second.content[0].text == "Take an umbrella."
    usage = second.usage
    assert usage.cache_read_input_tokens == 4
    assert usage.input_tokens + 4 == counted.input_tokens


def test_without_thinking_asked_for_there_is_none(anthropic_client: Anthropic) -> None:
    message = anthropic_client.messages.create(model="scripted", max_tokens=100, messages=HI)
    assert message.content[0].type == "text"


def test_stop_sequences_and_limits_of_messages(anthropic_client: Anthropic) -> None:
    count: Any = [{"role": "user", "content": "Count"}]
    stopped = anthropic_client.messages.create(
        model="scripted", max_tokens=100, messages=count, stop_sequences=[" three"]
    )
    assert stopped.content[0].type == "text"
    assert stopped.content[0].text == "one two"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " three")
    cut = anthropic_client.messages.create(model="scripted", max_tokens=1, messages=count)
    assert cut.stop_reason == "max_tokens"
