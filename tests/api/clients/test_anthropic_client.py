"""The `anthropic` client against a real socket, with strict validation of all that comes back."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport
from pippin.core.events import Failed
from tests.api.golden_events import SEQUENCES
from tests.api.played_service import PlayedService, served
from tests.clients import anthropic_of

BUSY = Failed(ErrorReport(kind="overloaded", message="Too many requests wait.", retry_after=2.0))
PLAYS = SEQUENCES | {"busy": [BUSY]}
HI: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def service() -> PlayedService:
    return PlayedService(PLAYS)


@pytest.fixture(scope="module")
def address(service: PlayedService) -> Iterator[str]:
    with served(service, ServerOptions(api_keys=("sk-one-00000000",))) as url:
        yield url


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Anthropic]:
    with anthropic_of(address, "sk-one-00000000") as made:
        yield made


def test_create(client: Anthropic) -> None:
    message = client.messages.create(model="text", max_tokens=9, messages=HI, system="Be brief.")
    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello, world"
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 2)


@pytest.mark.parametrize("name", [name for name in SEQUENCES if not name.startswith("fails")])
def test_every_stream_folds_to_the_whole_message(client: Anthropic, name: str) -> None:
    whole = client.messages.create(model=name, max_tokens=9, messages=HI)
    with client.messages.stream(model=name, max_tokens=9, messages=HI) as stream:
        folded = stream.get_final_message()
    if name != "tool_call_cut":  # the client makes what it can of arguments that were cut
        assert [block.to_dict() for block in folded.content] == [block.to_dict() for block in whole.content]
    assert (folded.stop_reason, folded.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert folded.usage.to_dict() == whole.usage.to_dict()


def test_stop_reasons(client: Anthropic) -> None:
    for name, reason in (
        ("length", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("tool_call", "tool_use"),
    ):
        assert client.messages.create(model=name, max_tokens=9, messages=HI).stop_reason == reason


def test_a_tool_loop(client: Anthropic, service: PlayedService) -> None:
    first = client.messages.create(
        model="reasoning_then_tool_call", max_tokens=9, messages=HI, tools=[WEATHER]
    )
    call = first.content[1]
    assert call.type == "tool_use"
    assert call.input == {"city": "Bern"}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain"}
    client.messages.create(
        model="text",
        max_tokens=9,
        tools=[WEATHER],
        messages=[*HI, first.to_param(), {"role": "user", "content": [result]}],
    )
    sent = service.requests[-1].messages
    assert sent is not None
    assert [message.role for message in sent] == ["user", "assistant", "tool"]


def test_tokens_are_counted_as_the_request_reports_them(client: Anthropic) -> None:
    given: Any = {"model": "echo", "messages": HI, "system": "one two", "tools": [WEATHER]}
    counted = client.messages.count_tokens(**given).input_tokens
    with client.messages.stream(max_tokens=9, **given) as stream:
        first = next(iter(stream))
    assert first.type == "message_start"
    assert first.message.usage.input_tokens == counted == 13


def test_any_claude_model_is_mapped_and_answers_under_its_name(client: Anthropic) -> None:
    assert client.messages.create(model="claude-next", max_tokens=9, messages=HI).model == "claude-next"


def test_errors_are_anthropics(client: Anthropic, address: str) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="no-such-model", max_tokens=9, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="text", max_tokens=-3, messages=HI)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model="text", max_tokens=9, messages=HI)
    headers = {"x-api-key": "sk-one-00000000"}
    reply = httpx.post(f"{address}/v1/messages", json={"model": "text"}, headers=headers)
    body = reply.json()
    assert (reply.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert body["request_id"] == reply.headers["request-id"]


def test_every_reply_names_its_request_as_the_client_reads_it(client: Anthropic, address: str) -> None:
    """As `_request_id` of an answer, `request_id` of a stream and of an error."""
    own = client.with_options(default_headers={"x-request-id": "my-own.id"})
    assert own.messages.create(model="text", max_tokens=9, messages=HI)._request_id == "my-own.id"
    assert own.messages.count_tokens(model="echo", messages=HI)._request_id == "my-own.id"
    with own.messages.stream(model="text", max_tokens=9, messages=HI) as stream:
        assert stream.request_id == "my-own.id"
    with pytest.raises(anthropic.NotFoundError) as refused:
        own.messages.create(model="no-such-model", max_tokens=9, messages=HI)
    assert refused.value.request_id == "my-own.id"
    with pytest.raises(anthropic.AuthenticationError) as turned_away:
        own.with_options(api_key="wrong").messages.create(model="text", max_tokens=9, messages=HI)
    assert turned_away.value.request_id == "my-own.id"
    named = client.messages.create(model="text", max_tokens=9, messages=HI)._request_id
    assert named
    assert named != client.messages.create(model="text", max_tokens=9, messages=HI)._request_id


def test_an_overloaded_server_answers_529(client: Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="busy", max_tokens=9, messages=HI)
    assert caught.value.status_code == 529
    assert caught.value.response.headers["retry-after"] == "2"


def test_a_failing_stream_ends_in_an_error_event(client: Anthropic) -> None:
    with (
        client.messages.stream(model="fails_in_text", max_tokens=9, messages=HI) as stream,
        pytest.raises(anthropic.APIStatusError, match="process ended"),
    ):
        list(stream)


def test_what_claude_code_sends_is_answered(client: Anthropic, address: str, service: PlayedService) -> None:
    body = {
        "model": "claude-sonnet-4-5-20250929",
        "max_tokens": 32000,
        "stream": False,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.36; cch=abcde;"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "betas": ["interleaved-thinking-2025-05-14"],
    }
    headers = {"authorization": "Bearer sk-one-00000000", "anthropic-version": "2023-06-01"}
    headers["anthropic-beta"] = "claude-code-20250219,context-management-2025-06-27"
    for path in ("/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"):
        assert httpx.post(address + path, json=body, headers=headers).status_code == 200
    sent = service.requests[-1].messages
    assert sent is not None
    assert [len(message.parts) for message in sent] == [1, 1]
