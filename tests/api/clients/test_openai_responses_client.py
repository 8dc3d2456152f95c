"""The `openai` client against a real socket, with strict validation of all that comes back."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from pippin.config.options.server import ServerOptions
from pippin.core.conversation import Text
from tests.api.golden_events import SEQUENCES, accepted, end, part
from tests.api.played_service import SLOW, PlayedService, served
from tests.clients import openai_of

JSON = [accepted(), *part("text", '{"city":', '"Ulm"}'), end(2)]
PLAYS = SEQUENCES | {"json": JSON}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def service() -> PlayedService:
    return PlayedService(PLAYS)


@pytest.fixture(scope="module")
def address(service: PlayedService) -> Iterator[str]:
    with served(service, ServerOptions()) as url:
        yield url


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


def test_create(client: OpenAI) -> None:
    response = client.responses.create(model="text", input="Hi", metadata={"a": "b"})
    assert response.output_text == "Hello, world"
    assert response.status == "completed"
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert response.usage.total_tokens == 14


@pytest.mark.parametrize("name", [name for name in SEQUENCES if not name.startswith("fails")])
def test_every_stream_is_read_to_its_end(client: OpenAI, name: str) -> None:
    with client.responses.stream(model=name, input="Hi", tools=[WEATHER]) as stream:
        events = list(stream)
        assert events[-1].type in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_an_answer_that_was_cut_says_why(client: OpenAI) -> None:
    response = client.responses.create(model="length", input="Hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_parse(client: OpenAI) -> None:
    class Place(BaseModel):
        city: str

    response = client.responses.parse(model="json", input="Where?", text_format=Place)
    assert response.output_parsed == Place(city="Ulm")


def test_reasoning_and_calls(client: OpenAI) -> None:
    response = client.responses.create(model="reasoning_then_tool_call", input="Weather?", tools=[WEATHER])
    reasoning, call = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Need the weather."
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Bern"}')


def test_a_tool_loop_by_sending_everything_back(client: OpenAI, service: PlayedService) -> None:
    first = client.responses.create(model="reasoning_then_tool_call", input="Weather?", tools=[WEATHER])
    items: list[Any] = [{"role": "user", "content": "Weather?"}]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    call: Any = first.output[1]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain"})
    client.responses.create(model="text", input=items, tools=[WEATHER])
    sent = service.requests[-1].messages
    assert sent is not None
    assert [message.role for message in sent] == ["user", "assistant", "tool"]


def test_logprobs(client: OpenAI) -> None:
    response = client.responses.create(
        model="logprobs", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    content: Any = response.output[0]
    logprobs = content.content[0].logprobs
    assert [entry.token for entry in logprobs] == ["Hello", " there"]
    assert len(logprobs[0].top_logprobs) == 2


def test_a_stored_response_is_continued_read_and_deleted(client: OpenAI, service: PlayedService) -> None:
    first = client.responses.create(model="text", input="One", instructions="Old instructions")
    second = client.responses.create(model="text", input="Two", previous_response_id=first.id)
    client.responses.create(model="text", input="Three", previous_response_id=second.id)
    sent = service.requests[-1].messages
    assert sent is not None
    said = ["".join(part.text for part in message.parts) for message in sent]  # type: ignore[union-attr]
    assert said == ["One", "Hello, world", "Two", "Hello, world", "Three"]
    assert client.responses.retrieve(second.id).output_text == "Hello, world"
    items = client.responses.input_items.list(second.id, order="asc")
    assert [item.type for item in items] == ["message", "message", "message"]
    assert [item.type for item in client.responses.input_items.list(second.id, limit=1)] == ["message"] * 3
    client.responses.delete(first.id)
    for forgotten in (lambda: client.responses.retrieve(first.id), lambda: client.responses.delete(first.id)):
        with pytest.raises(openai.NotFoundError):
            forgotten()
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="text", input="Four", previous_response_id=second.id)


def test_a_streamed_response_is_stored_before_its_end_is_told(client: OpenAI) -> None:
    with client.responses.stream(model="text", input="Hi") as stream:
        for event in stream:
            if event.type == "response.completed":
                assert client.responses.retrieve(event.response.id).output_text == "Hello, world"


def test_a_response_that_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    response = client.responses.create(model="text", input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_tokens_are_counted_as_the_request_would_have_them(client: OpenAI) -> None:
    given: Any = {"model": "echo", "input": "one two three", "instructions": "four", "tools": [WEATHER]}
    assert client.responses.input_tokens.count(**given).input_tokens == 14
    assert client.responses.create(**given).output_text == "14 words"


def test_a_conversation_is_compacted_and_goes_on(
    client: OpenAI, address: str, service: PlayedService
) -> None:
    first = client.responses.create(model="text", input="One")
    body = {"model": "text", "input": "Two", "previous_response_id": first.id}
    compacted = httpx.post(f"{address}/v1/responses/compact", json=body).json()
    assert compacted["object"] == "response.compaction"
    assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
    client.responses.create(model="text", input=[*compacted["output"], {"role": "user", "content": "Three"}])
    sent = service.requests[-1].messages
    assert sent is not None
    said = [part.text for message in sent for part in message.parts if isinstance(part, Text)]
    assert [said[0], said[1], said[3]] == ["One", "Two", "Three"]
    assert said[2].endswith("Hello, world")


def wait_for(client: OpenAI, id: str, status: str) -> Any:
    for _ in range(200):
        response = client.responses.retrieve(id)
        if response.status == status:
            return response
        time.sleep(0.02)
    raise AssertionError(response)


def test_a_background_response_is_polled(client: OpenAI) -> None:
    response = client.responses.create(model="text", input="Hi", background=True)
    assert response.status in ("queued", "in_progress")
    assert wait_for(client, response.id, "completed").output_text == "Hello, world"


def test_a_background_response_is_cancelled(client: OpenAI, service: PlayedService) -> None:
    response = client.responses.create(model=SLOW, input="Hi", background=True)
    wait_for(client, response.id, "in_progress")
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"
    assert service.runs[-1].closed


def test_a_background_response_is_followed_again_from_where_a_stream_broke(
    client: OpenAI, service: PlayedService
) -> None:
    stream = client.responses.create(model=SLOW, input="Hi", background=True, stream=True)
    seen = []
    for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    stream.close()
    created: Any = seen[0]
    service.release()
    again = client.responses.retrieve(
        created.response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    rest = list(again)
    numbers = [event.sequence_number for event in [*seen, *rest]]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    assert [event.type for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]


def test_what_did_not_run_in_the_background_cannot_be_cancelled_or_followed(client: OpenAI) -> None:
    response = client.responses.create(model="text", input="Hi")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.retrieve(response.id, stream=True)


def test_a_conversation_grows_with_its_responses(client: OpenAI) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Before"}], metadata={"a": "b"}
    )
    client.responses.create(model="text", input="Hi", conversation=conversation.id)
    answer = client.responses.create(model="echo", input="Two more words", conversation=conversation.id)
    assert answer.output_text == "7 words"
    assert answer.conversation is not None
    assert answer.conversation.id == conversation.id
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [getattr(item, "role", None) for item in items] == [
        "user", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    [added] = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "More"}]
    ).data
    assert added.id is not None
    assert client.conversations.items.retrieve(added.id, conversation_id=conversation.id).type == "message"
    client.conversations.items.delete(added.id, conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.retrieve(conversation.id).id == conversation.id
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_failing_stream_ends_in_response_failed(client: OpenAI) -> None:
    with client.responses.create(model="fails_in_text", input="Hi", stream=True) as stream:
        *_, last = stream
    assert last.type == "response.failed"
    assert last.response.status == "failed"


def test_errors_have_a_status_before_the_first_byte(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="no-such-model", input="Hi", stream=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="no-such-model", input="Hi", background=True)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.responses.create(model="text", input="Hi", temperature=-5)
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="fails_in_text", input="Hi")


def test_without_the_version_in_the_path(address: str) -> None:
    reply = httpx.post(f"{address}/responses", json={"model": "text", "input": "Hi"})
    assert reply.status_code == 200
    assert httpx.get(f"{address}/responses/{reply.json()['id']}").json() == reply.json()


def test_keys_do_not_see_each_others_responses(service: PlayedService) -> None:
    with served(service, ServerOptions(api_keys=("sk-one-00000000", "sk-two-00000000"))) as url:
        one, two = openai_of(url, "sk-one-00000000"), openai_of(url, "sk-two-00000000")
        with one, two:
            response = one.responses.create(model="text", input="Hi")
            assert one.responses.retrieve(response.id).id == response.id
            for attempt in (
                lambda: two.responses.retrieve(response.id),
                lambda: two.responses.delete(response.id),
                lambda: two.responses.create(model="text", input="x", previous_response_id=response.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    attempt()


def test_a_store_in_a_file_survives_a_restart(service: PlayedService, tmp_path: Path) -> None:
    options = ServerOptions(response_store=str(tmp_path / "kept" / "responses.db"))
    with served(service, options) as url, openai_of(url) as before:
        stored = before.responses.create(model="text", input="Hi")
        running = before.responses.create(model=SLOW, input="Hi", background=True)
    with served(service, options) as url, openai_of(url) as after:
        assert after.responses.retrieve(stored.id).output_text == "Hello, world"
        assert after.responses.retrieve(running.id).status == "failed"
