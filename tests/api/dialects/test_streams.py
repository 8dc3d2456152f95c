"""Whatever legal events come: the streams are well-formed, and fold to the whole answer."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pippin.core.completion import collect
from pippin.core.events import (
    Accepted,
    Event,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    Token,
    Usage,
)
from tests.api.dialects.golden import encoder_of, streamed
from tests.api.dialects.test_golden_frames import events as vendors_events
from tests.api.dialects.test_golden_frames import payloads

text = st.text(alphabet='aé😀\u2028"\\ \n\x00', max_size=8)
texts = st.lists(text, max_size=5)
calls = st.dictionaries(text, st.integers() | text, max_size=3).map(json.dumps)


@st.composite
def generations(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [Accepted(prompt_tokens=20)]
    if draw(st.booleans()):
        events.append(Progress(done=20, total=20, cached=draw(st.integers(0, 20))))
    for index in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "reasoning", "tool_call"]))
        if kind == "tool_call":
            pieces = pieces_of(draw, draw(calls))
            events.append(PartStarted(0, index, "tool_call", f"call_{index}", f"tool{index}"))
        else:
            pieces = draw(texts)
            events.append(PartStarted(0, index, "text" if kind == "text" else "reasoning"))
        for piece in pieces:
            tokens = (Token(1, piece.encode(), -0.5),) if kind == "text" and draw(st.booleans()) else ()
            events.append(PartDelta(0, index, piece, tokens, 1))
        events.append(PartEnded(0, index))
    reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    usage = Usage(
        prompt_tokens=20, cached_tokens=draw(st.integers(0, 16)), stored_tokens=4, completion_tokens=9
    )
    stop = draw(st.none() | st.just("END")) if reason == "stop" else None
    events.append(Finished(0, reason, stop, usage))
    return events


def pieces_of(draw: st.DrawFn, arguments: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
    ends = [*cuts, len(arguments)]
    return [arguments[start:end] for start, end in zip([0, *cuts], ends, strict=True)]


def of_type(events: list[dict[str, Any]], *types: str) -> Iterator[dict[str, Any]]:
    return (event for event in events if event["type"] in types)


@given(generations())
def test_the_last_response_of_a_stream_is_the_whole_answer(events: list[Event]) -> None:
    last = payloads(streamed("responses", events))[-1]["response"]
    assert last == json.loads(encoder_of("responses").whole([collect(events)]))


@given(generations())
def test_responses_events_are_numbered_and_each_item_opens_grows_and_closes(events: list[Event]) -> None:
    sent = payloads(streamed("responses", events))
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert [event["type"] for event in sent[:2]] == ["response.created", "response.in_progress"]
    assert sent[-1]["type"] == f"response.{sent[-1]['response']['status']}"
    output = sent[-1]["response"]["output"]
    assert [event["output_index"] for event in of_type(sent, "response.output_item.added")] == list(
        range(len(output))
    )
    assert [event["item"] for event in of_type(sent, "response.output_item.done")] == output
    open_index: int | None = None
    for event in sent[2:-1]:
        match event["type"]:
            case "response.output_item.added":
                assert open_index is None
                open_index = event["output_index"]
            case "response.output_item.done":
                assert open_index == event["output_index"]
                open_index = None
            case _:
                assert open_index == event["output_index"]
                assert event["item_id"] == output[open_index]["id"]
    assert open_index is None


@given(generations())
def test_the_deltas_of_an_item_are_its_text(events: list[Event]) -> None:
    sent = payloads(streamed("responses", events))
    for item in sent[-1]["response"]["output"]:
        own = [event for event in sent if event.get("item_id") == item["id"]]
        grown = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        match item["type"]:
            case "message" | "reasoning":
                assert grown == item["content"][0]["text"]
            case "function_call":
                assert grown == item["arguments"]


@given(generations())
def test_the_messages_stream_folds_to_the_whole_answer(events: list[Event]) -> None:
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for payload in payloads(streamed("messages", events)):
        if payload["type"] != "ping":
            event = vendors_events()["messages"].validate_python(payload)
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    folded = snapshot.to_dict(mode="json")
    expected = json.loads(encoder_of("messages").whole([collect(events)]))
    for answer in (folded, expected):
        for block in answer["content"]:
            for extra in ("citations", "parsed_output", "caller"):
                block.pop(extra, None)
    assert folded["content"] == expected["content"]
    assert folded["stop_reason"] == expected["stop_reason"]
    assert folded["stop_sequence"] == expected["stop_sequence"]
    assert folded["usage"] == expected["usage"]


@given(generations())
def test_messages_blocks_open_and_close_one_after_the_other(events: list[Event]) -> None:
    sent = payloads(streamed("messages", events))
    assert [event["type"] for event in sent[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in sent[-2:]] == ["message_delta", "message_stop"]
    is_open, index = False, 0
    for event in sent[2:-2]:
        assert event["index"] == index
        match event["type"]:
            case "content_block_start":
                assert not is_open
                is_open = True
            case "content_block_delta":
                assert is_open
            case "content_block_stop":
                assert is_open
                is_open, index = False, index + 1
    assert not is_open


@given(generations())
def test_prompt_figures_of_a_message_add_up(events: list[Event]) -> None:
    usage = json.loads(encoder_of("messages").whole([collect(events)]))["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[name] for name in parts) == 20
