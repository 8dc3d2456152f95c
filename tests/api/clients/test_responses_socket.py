"""The Responses API over a WebSocket: the real `openai` client, and messages as any client may send them."""

import json
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import (
    ResponseSteerAcceptedEvent,
    ResponseSteerFailedEvent,
    ResponseSteerPendingEvent,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.api.live_server import MODEL, live_server
from tests.clients import openai_of

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"tool_result": "rain"}, "say": "It rains."},
        {"when": {"user": "weather"}, "calls": [{"name": "look", "arguments": {"city": "Oslo"}}]},
        {"when": {"user": "shorter", "turn": 2}, "say": "Shorter."},
        {
            "when": {"user": "slowly look"},
            "say": "I look.",
            "calls": [{"name": "look", "arguments": {"city": "x" * 400}}],
            "gap": 0.02,
        },
        {"when": {"user": "slow"}, "say": " ".join(["word"] * 2000), "gap": 0.05},
        {"when": {"user": "and now", "turn": 2}, "say": "The second turn."},
    ]
}
TOOL: Any = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), SCRIPT) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


def socket_of(address: str, path: str = "/v1/responses", **fields: Any) -> ClientConnection:
    return connect(address.replace("http", "ws") + path, **fields)


def asked(socket: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    """All events of one response."""
    socket.send(json.dumps({"type": "response.create", "model": MODEL, **fields}))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
        events.append(json.loads(socket.recv(timeout=30)))
    return events


def said(events: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # of how the client uses its library
def test_the_openai_client_asks_several_times_on_one_connection(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        for text in ("one two", "three four"):
            connection.response.create(model=MODEL, input=text)
            pieces = []
            for event in connection:
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                if event.type == "response.completed":
                    break
            assert "".join(pieces) == text


def test_the_events_are_those_of_a_stream(client: OpenAI, address: str) -> None:
    streamed = [each.type for each in client.responses.create(model=MODEL, input="one two", stream=True)]
    with socket_of(address) as socket:
        events = asked(socket, input="one two")
    # One delta may hold several tokens.
    assert [name for name, _ in groupby(each["type"] for each in events)] == [
        name for name, _ in groupby(streamed)
    ]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))


@pytest.mark.parametrize("store", [True, False])
def test_a_response_is_continued_whether_it_is_stored_or_not(
    address: str, client: OpenAI, store: bool
) -> None:
    with socket_of(address) as socket:
        first = asked(socket, input="hello", store=store)[-1]["response"]
        second = asked(socket, input="and now", previous_response_id=first["id"], store=store)
        third = asked(socket, input="again", previous_response_id=second[-1]["response"]["id"], store=store)
    assert said(second) == "The second turn."
    assert said(third) == "again"
    if store:
        assert client.responses.retrieve(first["id"]).id == first["id"]


def test_what_was_not_stored_is_unknown_to_other_connections(address: str) -> None:
    with socket_of(address) as socket:
        first = asked(socket, input="hello", store=False)[-1]["response"]
    with socket_of(address) as socket:
        [refused] = asked(socket, input="and now", previous_response_id=first["id"])
    assert refused["type"] == "error"
    assert refused["error"]["code"] == "previous_response_not_found"


def test_a_turn_that_fails_ends_the_chain_that_is_not_stored(address: str) -> None:
    orphan = {"type": "function_call_output", "call_id": "call_of_nobody", "output": "rain"}
    with socket_of(address) as socket:
        first = asked(socket, input="hello", store=False)[-1]["response"]
        [failed] = asked(socket, input=[orphan], previous_response_id=first["id"], store=False)
        assert "call_of_nobody" in failed["error"]["message"]
        [refused] = asked(socket, input="and now", previous_response_id=first["id"], store=False)
        assert refused["error"]["code"] == "previous_response_not_found"


def test_a_failed_turn_that_goes_on_with_nothing_ends_no_chain(address: str) -> None:
    with socket_of(address) as socket:
        first = asked(socket, input="hello", store=False)[-1]["response"]
        [failed] = asked(socket, input="a", temperature=9)
        assert failed["type"] == "error"
        second = asked(socket, input="and now", previous_response_id=first["id"], store=False)
        assert said(second) == "The second turn."


def test_tools_are_called_and_answered(address: str) -> None:
    with socket_of(address) as socket:
        first = asked(socket, input="weather", tools=[TOOL], store=False)[-1]["response"]
        [call] = first["output"]
        assert json.loads(call["arguments"]) == {"city": "Oslo"}
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        second = asked(socket, input=[result], tools=[TOOL], previous_response_id=first["id"], store=False)
    assert said(second) == "It rains."


def test_generate_false_prepares_a_response_to_go_on_with(address: str) -> None:
    with socket_of(address) as socket:
        warm = asked(socket, input="hello", generate=False, store=False)[-1]["response"]
        assert warm["output"] == []
        second = asked(socket, input="go on", previous_response_id=warm["id"], store=False)
    assert said(second) == "go on"


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("no json", "JSON"),
        ('{"no": "type"}', "type"),
        ('{"type": "response.nudge"}', "response.create"),
        (json.dumps({"type": "response.create", "model": MODEL}), "input"),
        (
            json.dumps({"type": "response.create", "model": MODEL, "input": "a", "background": True}),
            "background",
        ),
        (
            json.dumps({"type": "response.create", "model": MODEL, "input": "a", "temperature": 9}),
            "temperature",
        ),
        (
            json.dumps({"type": "response.create", "model": "nobody-has-this", "input": "a"}),
            "nobody-has-this",
        ),
    ],
)
def test_what_cannot_be_answered_is_an_error_and_the_connection_goes_on(
    address: str, message: str, named: str
) -> None:
    with socket_of(address) as socket:
        socket.send(message)
        refused = json.loads(socket.recv(timeout=30))
        assert refused["type"] == "error"
        assert refused["status"] in (400, 404)
        assert named in refused["error"]["message"]
        assert said(asked(socket, input="still here")) == "still here"


def test_a_client_who_leaves_stops_the_answer(address: str, client: OpenAI) -> None:
    with socket_of(address) as socket:
        socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "slow"}))
        while json.loads(socket.recv(timeout=30))["type"] != "response.output_text.delta":
            pass
    for _ in range(100):
        if not client.get("/status", cast_to=object)["requests"]:  # type: ignore[index]
            break
        threading.Event().wait(0.1)
    else:
        pytest.fail("the answer goes on")


def test_other_addresses_refuse_the_connection_with_a_sentence(address: str) -> None:
    with pytest.raises(InvalidStatus) as caught, socket_of(address, "/v1/chat/completions"):
        pass
    assert caught.value.response.status_code == 405
    assert b"/v1/responses" in (caught.value.response.body or b"")


def test_keys_are_asked_for_and_taken_from_the_protocols(tmp_path: Path) -> None:
    with live_server(tmp_path, SCRIPT, api_keys=("secret",)) as address:
        with pytest.raises(InvalidStatus) as caught, socket_of(address):
            pass
        assert caught.value.response.status_code == 401
        for fields in (
            {"additional_headers": {"authorization": "Bearer secret"}},
            {"subprotocols": ["realtime", "openai-insecure-api-key.secret"]},
        ):
            with socket_of(address, **fields) as socket:
                assert said(asked(socket, input="hello")) == "hello"


def test_a_withdrawn_key_ends_what_its_connection_may_ask(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    boss = "- {name: root, key: root-key, role: admin}\n"
    keys.write_text(boss + "- {name: web, key: web-key, endpoints: [/responses]}\n")
    web, root = ({"authorization": f"Bearer {name}-key"} for name in ("web", "root"))
    with (
        live_server(tmp_path, SCRIPT, api_key_file=keys) as address,
        socket_of(address, additional_headers=web) as socket,
    ):
        assert said(asked(socket, input="hello")) == "hello"
        keys.write_text(boss)
        httpx.patch(f"{address}/v1/settings", headers=root, json={"rate_limit": 999}).raise_for_status()
        assert "withdrawn" in asked(socket, input="hello")[-1]["error"]["message"]


def test_a_page_of_another_origin_is_refused(address: str) -> None:
    with pytest.raises(InvalidStatus) as caught, socket_of(address, origin="https://evil.example"):
        pass
    assert caught.value.response.status_code == 403


def test_who_sends_ahead_without_end_is_closed(address: str) -> None:
    with pytest.raises(ConnectionClosed), socket_of(address) as socket:
        for _ in range(64):
            socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "slow"}))
        while True:
            socket.recv(timeout=30)


STEER_EVENTS: dict[str, Any] = {
    "response.steer.accepted": ResponseSteerAcceptedEvent,
    "response.steer.pending": ResponseSteerPendingEvent,
    "response.steer.failed": ResponseSteerFailedEvent,
}
ENDS = ("response.completed", "response.incomplete", "response.failed", "response.steer.pending", "error")


class Talk:
    """One connection, whose events are read one by one."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def create(self, **fields: Any) -> None:
        self._send({"type": "response.create", "model": MODEL, **fields})

    def steer(self, response: str, words: Any) -> None:
        self._send({"type": "response.steer", "previous_response_id": response, "input": words})

    def until(self, *kinds: str) -> list[dict[str, Any]]:
        """All events up to one of these kinds, each checked against the vendor's types."""
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in kinds:
            events.append(json.loads(self._socket.recv(timeout=30)))
            if kind := STEER_EVENTS.get(events[-1]["type"]):
                kind.model_validate(events[-1])
        return events

    def _send(self, event: dict[str, Any]) -> None:
        self._socket.send(json.dumps(event))


@pytest.fixture
def talk(address: str) -> Iterator[Talk]:
    with socket_of(address) as socket:
        yield Talk(socket)


def test_who_steers_a_response_ends_it_and_is_answered_by_the_next(talk: Talk) -> None:
    talk.create(input="slow", store=False, metadata={"a": "b"})
    first = talk.until("response.output_text.delta")
    response = first[0]["response"]["id"]
    talk.steer(response, [{"type": "message", "role": "user", "content": "shorter"}])
    rest = talk.until("response.incomplete")
    numbers = [each["sequence_number"] for each in (*first, *rest)]
    assert numbers == list(range(len(numbers)))
    (accepted,) = [each for each in rest if each["type"] == "response.steer.accepted"]
    assert accepted["steer"]["previous_response_id"] == response
    ended = rest[-1]["response"]
    assert ended["incomplete_details"] == {"reason": "steered"}
    assert ended["output"][0]["content"][0]["text"].startswith("word")
    usage = ended["usage"]
    assert 0 < usage["input_tokens"] < usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    following = talk.until(*ENDS)
    assert (following[0]["type"], following[-1]["type"]) == ("response.created", "response.completed")
    done = following[-1]["response"]
    assert said(following) == "Shorter."
    assert (done["previous_response_id"], done["metadata"], done["store"]) == (response, {"a": "b"}, False)
    assert done["usage"]["input_tokens"] > 1


def test_words_for_a_response_that_calls_tools_wait_for_their_results(talk: Talk) -> None:
    taken = ""
    # The answer is over before this test has spoken if it gets no processor for a while.
    while taken != "response.steer.accepted":
        talk.create(input="slowly look", tools=[TOOL])
        first = talk.until("response.function_call_arguments.delta")
        response = first[0]["response"]["id"]
        talk.steer(response, "shorter")
        taken = talk.until("response.steer.accepted", "response.steer.failed")[-1]["type"]
    talk.until("response.completed")
    (pending,) = talk.until("response.steer.pending")
    (stub,) = pending["required_input"]
    assert (stub["type"], stub["name"]) == ("function_call_output", "look")
    talk.create(previous_response_id=response, input=[stub | {"output": "rain"}], tools=[TOOL])
    done = talk.until(*ENDS)[-1]["response"]
    assert done["status"] == "completed"


OUTPUT: Any = {"type": "function_call_output", "call_id": "c", "output": "x"}


@pytest.mark.parametrize(
    "words", [[], [OUTPUT], [{"type": "message", "role": "user", "content": []}, OUTPUT]]
)
def test_words_that_cannot_be_taken_come_back(talk: Talk, words: Any) -> None:
    talk.create(input="slow")
    response = talk.until("response.output_text.delta")[0]["response"]["id"]
    talk.steer(response, words)
    failed = json_of(talk, "response.steer.failed")
    assert (failed["error"]["code"], failed["steer"]["input"]) == ("invalid_input", words)


def test_what_is_over_or_unknown_or_kept_elsewhere_is_not_steered(talk: Talk) -> None:
    talk.create(input="one two")
    response = talk.until("response.completed")[0]["response"]["id"]
    talk.steer(response, "more")
    assert json_of(talk, "response.steer.failed")["error"]["code"] == "response_already_completed"
    talk.steer("resp_none", "more")
    assert json_of(talk, "response.steer.failed")["error"]["code"] == "response_not_found"
    talk.create(input="slow", context_management=[{"type": "compaction", "compact_threshold": 99}])
    response = talk.until("response.output_text.delta")[0]["response"]["id"]
    talk.steer(response, "more")
    assert json_of(talk, "response.steer.failed")["error"]["code"] == "steering_not_supported"


def json_of(talk: Talk, kind: str) -> dict[str, Any]:
    return talk.until(kind)[-1]
