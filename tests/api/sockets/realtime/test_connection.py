"""Realtime connections over the scripted engine: every event has the shape of OpenAI's types."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from pippin.api.sockets.realtime import connection
from tests.api.live_server import MODEL, live_server
from tests.api.sockets.realtime.client import Client, client_of, joined, of, said
from tests.clients import openai_of

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"tool_result": "rain"}, "say": "It rains."},
        {"when": {"user": "weather"}, "calls": [{"name": "look", "arguments": {"city": "Oslo"}}]},
        {"when": {"user": "slow"}, "say": " ".join(["word"] * 2000), "gap": 0.05},
        {"when": {"user": "think"}, "think": "hmm", "say": "I thought."},
        {"when": {"user": "who", "system": "Pippin"}, "say": "I am Pippin."},
    ]
}
TOOL: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks out of the window.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


@pytest.fixture
def talk(address: str) -> Iterator[Client]:
    with client_of(address) as found:
        found.sets(output_modalities=["text"])
        yield found


def test_a_session_begins_with_what_it_is_set_to(address: str) -> None:
    with client_of(address) as talk:
        session = talk.session
    assert session["type"] == "realtime"
    assert session["model"] == MODEL
    assert session["output_modalities"] == ["audio"]  # a scripted model speaks too
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["input"]["turn_detection"] is None
    assert session["tools"] == []


def test_the_events_of_a_text_come_in_openais_order(talk: Client) -> None:
    asked = talk.says("one two three")
    events = talk.respond()
    deltas = len(of(events, "response.output_text.delta"))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert said(events) == "one two three"
    response = events[-1]["response"]
    [item] = response["output"]
    assert item["content"] == [{"type": "output_text", "text": "one two three"}]
    assert item["status"] == response["status"] == "completed"
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    [added] = of(events, "conversation.item.added")
    assert added["previous_item_id"] == asked["id"]


def test_a_conversation_goes_on(talk: Client) -> None:
    talk.says("weather?")
    events = talk.respond(tools=[TOOL])
    [call] = events[-1]["response"]["output"]
    assert (call["type"], call["name"]) == ("function_call", "look")
    assert json.loads(call["arguments"]) == {"city": "Oslo"}
    assert joined(events, "response.function_call_arguments.delta") == call["arguments"]
    [done] = of(events, "response.function_call_arguments.done")
    assert (done["name"], done["call_id"]) == ("look", call["call_id"])
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    talk.send("conversation.item.create", item=result)
    talk.until("conversation.item.done")
    assert said(talk.respond(tools=[TOOL])) == "It rains."


def test_instructions_hold_for_the_session_and_for_one_response(talk: Client) -> None:
    assert talk.sets(instructions="You are Pippin.")["instructions"] == "You are Pippin."
    talk.says("who are you")
    assert said(talk.respond()) == "I am Pippin."
    assert said(talk.respond(instructions="You are nobody.")) != "I am Pippin."
    assert said(talk.respond()) == "I am Pippin."


def test_a_limit_of_tokens_leaves_a_response_incomplete(talk: Client) -> None:
    talk.says("one two three four five six")
    response = talk.respond(max_output_tokens=2)[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["status_details"]["reason"] == "max_output_tokens"
    assert response["max_output_tokens"] == 2
    assert response["output"][0]["status"] == "incomplete"


def test_reasoning_is_counted_and_not_sent(talk: Client) -> None:
    talk.says("think")
    events = talk.respond()
    assert said(events) == "I thought."
    assert len(events[-1]["response"]["output"]) == 1


def test_items_are_put_in_their_place_retrieved_and_deleted(talk: Client) -> None:
    second = talk.says("second")
    first = talk.says("first", previous_item_id="root")
    third = talk.says("third", previous_item_id=second["id"])
    talk.send("conversation.item.retrieve", item_id=first["id"])
    assert talk.next()["item"] == first
    talk.send("conversation.item.delete", item_id=third["id"])
    deleted = talk.next()
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", third["id"])
    assert said(talk.respond()) == "second"  # the last of what is left
    error = talk.refused("conversation.item.retrieve", item_id=third["id"])
    assert error["code"] == "item_not_found"


def test_an_item_of_the_clients_own_id_is_known_by_it(talk: Client) -> None:
    content = [{"type": "input_text", "text": "hi"}]
    item = {"id": "my_item", "type": "message", "role": "user", "content": content}
    talk.send("conversation.item.create", item=item)
    assert talk.until("conversation.item.done")[-1]["item"]["id"] == "my_item"
    assert "my_item" in talk.refused("conversation.item.create", item=item)["message"]


def test_a_second_response_is_refused_while_the_first_goes_on(talk: Client) -> None:
    talk.says("slow")
    talk.send("response.create")
    talk.until("response.output_text.delta")
    error = talk.refused("response.create")
    assert error["code"] == "conversation_already_has_active_response"
    talk.send("response.cancel")
    assert talk.until("response.done")[-1]["response"]["status"] == "cancelled"


def test_a_cancelled_response_keeps_what_was_said(talk: Client) -> None:
    talk.says("slow")
    talk.send("response.create")
    begun = talk.until("response.output_text.delta")
    talk.send("response.cancel", response_id=begun[0]["response"]["id"])
    rest = talk.until("response.done")
    response = rest[-1]["response"]
    assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    [item] = response["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == said(begun + rest)
    assert response["usage"]["output_tokens"] >= 1
    assert talk.refused("response.cancel")["code"] == "response_cancel_not_active"
    talk.says("and now")
    assert said(talk.respond()) == "and now"


def test_a_client_who_leaves_stops_the_answer(address: str, client: OpenAI) -> None:
    with client_of(address) as talk:
        talk.says("slow")
        talk.send("response.create")
        talk.until("response.output_audio_transcript.delta")
    for _ in range(100):
        if not client.get("/status", cast_to=object)["requests"]:  # type: ignore[index]
            break
        threading.Event().wait(0.1)
    else:
        pytest.fail("the answer goes on")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"type": "session.update", "session": {"type": "transcription"}}, "session.type"),
        ({"type": "session.update", "session": {"type": "realtime", "model": "x"}}, "session.model"),
        ({"type": "session.update", "session": {"temperature": 9}}, "temperature"),
        ({"type": "session.update", "session": {"prompt": {"id": "p"}}}, "session.prompt"),
        (
            {"type": "session.update", "session": {"output_modalities": ["text", "audio"]}},
            "output_modalities",
        ),
        ({"type": "session.update", "session": {"tool_choice": "required"}}, "tool_choice"),
        (
            {"type": "session.update", "session": {"tool_choice": {"type": "function", "name": "x"}}},
            "tool_choice.name",
        ),
        ({"type": "session.update", "session": {"tools": [{"type": "web_search"}]}}, "tools[0].type"),
        (
            {
                "type": "session.update",
                "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}},
            },
            "turn_detection",
        ),
        (
            {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
            "session.audio.input.format",
        ),
        (
            {
                "type": "session.update",
                "session": {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}},
            },
            "noise_reduction",
        ),
        (
            {
                "type": "session.update",
                "session": {"audio": {"input": {"transcription": {"model": "nobody-has-this"}}}},
            },
            "nobody-has-this",
        ),
        (
            {"type": "session.update", "session": {"audio": {"output": {"model": "nobody-has-this"}}}}
            | {"session": {"output_modalities": ["audio"], "audio": {"output": {"model": "nobody"}}}},
            "nobody",
        ),
        ({"type": "session.update", "session": {"include": ["x"]}}, "include"),
        (
            {
                "type": "session.update",
                "session": {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
            },
            "truncation",
        ),
        ({"type": "session.update"}, "session"),
        ({"type": "response.steer"}, "response.create"),
        ({"type": "output_audio_buffer.clear"}, "type"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "16 bits"),
        ({"type": "input_audio_buffer.commit"}, "0 ms"),
        ({"type": "conversation.item.delete", "item_id": "x"}, "x"),
        ({"type": "conversation.item.truncate", "item_id": "x", "audio_end_ms": 1}, "delete the item"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "function_call_output", "call_id": "call_of_nobody", "output": ""},
            },
            "call_of_nobody",
        ),
        ({"type": "conversation.item.create", "item": {"type": "mcp_call"}}, "type"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": "output_text", "text": ""}]},
            },
            "input_text",
        ),
        ({"type": "response.create", "response": {"max_output_tokens": 0}}, "max_output_tokens"),
        ({"type": "response.create", "response": {"input": []}}, "response.input"),
        ({"type": "response.create", "response": {"conversation": "none"}}, "response.conversation"),
        ({"type": 7}, "type"),
        ({}, "type"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_names_it(talk: Client, fields: Any, named: str) -> None:
    talk.socket.send(json.dumps({"event_id": "mine", **fields}))
    error = talk.until("error")[-1]["error"]
    assert error["event_id"] == "mine"
    assert named in f"{error['param']} {error['message']}"
    talk.says("still here")
    assert said(talk.respond()) == "still here"


@pytest.mark.parametrize(
    "message", ["no json", "[]", "7", '"x"', b"bytes", '{"type": "session.update"', "[" * 9999]
)
def test_what_is_no_event_is_an_error_and_not_the_end(talk: Client, message: str | bytes) -> None:
    talk.socket.send(message)
    assert talk.next()["type"] == "error"
    talk.says("still here")
    assert said(talk.respond()) == "still here"


def test_a_failing_model_ends_the_response_and_not_the_connection(talk: Client) -> None:
    talk.says("one two")
    response = talk.respond(reasoning={"effort": "low"}, max_output_tokens=100_000_000)[-1]["response"]
    assert response["status"] in ("completed", "failed")
    talk.says("still here")
    assert said(talk.respond()) == "still here"


def test_who_sends_faster_than_is_answered_is_read_slowly_and_not_closed(talk: Client) -> None:
    for number in range(300):
        talk.send("session.update", session={"type": "realtime", "instructions": str(number)})
    answers = [talk.next() for _ in range(300)]
    assert [answer["session"]["instructions"] for answer in answers] == [str(n) for n in range(300)]


def test_an_idle_connection_is_closed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)
    with pytest.raises(ConnectionClosed) as caught, client_of(address) as talk:
        while True:
            talk.next(timeout=20)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1001


def test_keys_their_rights_and_their_limits_hold(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "- {name: root, key: root-key, role: admin}\n"
        "- {name: few, key: few-key, rate_limit: 2}\n"
        "- {name: other, key: other-key, models: [another]}\n"
        "- {name: chat, key: chat-key, endpoints: [/chat/completions]}\n"
    )
    with live_server(tmp_path, SCRIPT, api_key_file=keys) as address:
        for bad, status in (("none", 401), ("other-key", 403), ("chat-key", 403)):
            headers = {"authorization": f"Bearer {bad}"}
            with pytest.raises(InvalidStatus) as caught, client_of(address, additional_headers=headers):
                pass
            assert caught.value.response.status_code == status
        with client_of(address, subprotocols=["realtime", "openai-insecure-api-key.few-key"]) as talk:  # type: ignore[list-item]
            talk.sets(output_modalities=["text"])
            talk.says("hello")
            assert talk.respond()[-1]["response"]["status"] == "completed"
            assert talk.respond()[-1]["response"]["status"] == "completed"
            refused = talk.respond()[-1]["response"]
            assert refused["status_details"]["error"]["code"] == "rate_limit_exceeded"


def test_a_withdrawn_key_ends_what_its_connection_may_ask(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    boss = "- {name: root, key: root-key, role: admin}\n"
    keys.write_text(boss + "- {name: web, key: web-key, endpoints: [/realtime]}\n")
    web, root = ({"authorization": f"Bearer {name}-key"} for name in ("web", "root"))
    with (
        live_server(tmp_path, SCRIPT, api_key_file=keys) as address,
        client_of(address, additional_headers=web) as talk,
    ):
        talk.sets(output_modalities=["text"])
        talk.says("hello")
        assert talk.respond()[-1]["response"]["status"] == "completed"
        keys.write_text(boss)
        httpx.patch(f"{address}/v1/settings", headers=root, json={"rate_limit": 999}).raise_for_status()
        error = talk.respond()[-1]["response"]["status_details"]["error"]
        assert "withdrawn" in error["message"]


@pytest.mark.parametrize("path", ["calls", "client_secrets"])
def test_what_only_openai_offers_names_the_way_out(address: str, path: str) -> None:
    reply = httpx.post(f"{address}/v1/realtime/{path}", json={})
    assert reply.status_code == 404
    assert "/v1/realtime" in reply.json()["error"]["message"]


def test_a_session_that_only_transcribes_is_refused_with_the_way_out(address: str) -> None:
    with pytest.raises(InvalidStatus) as caught, client_of(address, "intent=transcription"):
        pass
    assert caught.value.response.status_code == 400
    assert b"/v1/audio/transcriptions" in (caught.value.response.body or b"")


def test_a_model_that_is_not_here_is_refused_before_the_connection(address: str) -> None:
    with pytest.raises(InvalidStatus) as caught, client_of(address, "model=nobody-has-this"):
        pass
    assert caught.value.response.status_code == 404
    assert b"nobody-has-this" in (caught.value.response.body or b"")


def test_each_response_has_a_line_in_the_log(talk: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        talk.says("hello")
        talk.respond()
    [line] = [each.message for each in caplog.records if each.message.startswith("SEND /v1/realtime 200")]
    assert f"model={MODEL}" in line
    assert "completion=" in line


@pytest.mark.parametrize(
    "asked",
    [
        {"additional_headers": {"OpenAI-Beta": "realtime=v1"}},
        {"subprotocols": ["realtime", "openai-beta.realtime-v1"]},
    ],
)
def test_the_beta_is_refused_and_the_current_form_named(address: str, asked: dict[str, Any]) -> None:
    url = address.replace("http", "ws") + f"/v1/realtime?model={MODEL}"
    with connect(url, **asked) as socket:
        event = json.loads(socket.recv(timeout=60))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert (event["type"], event["error"]["param"]) == ("error", "OpenAI-Beta")
    assert "current events" in event["error"]["message"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("type", "fields", "named"),
    [
        ("session.update", {"session": {"modalities": ["text"]}}, "session.modalities"),
        ("session.update", {"session": {"system_prompt": "Be brief."}}, "session.system_prompt"),
        (
            "response.create",
            {"response": {"max_response_output_tokens": 9}},
            "response.max_response_output_tokens",
        ),
        ("transcription_session.update", {"session": {}}, "type"),
        ("session.ping", {}, "type"),
        ("input_audio_buffer.append", {"audio": "", "sample_rate": 16000}, "sample_rate"),
        ("input_audio_buffer.commit", {"pad_partial": True}, "pad_partial"),
    ],
)
def test_events_of_former_shapes_are_refused_by_name(
    talk: Client, type: str, fields: dict[str, Any], named: str
) -> None:
    assert talk.refused(type, **fields)["param"] == named
