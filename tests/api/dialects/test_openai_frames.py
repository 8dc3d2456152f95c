"""What Chat Completions and Completions put on the wire, byte by byte, and that OpenAI's types take it."""

import json
import re
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from pippin.api.dialects.base import DecodeContext
from pippin.core.events import Accepted, Event, Finished, Progress, Usage
from tests.api.dialects.openai_golden import DIALECTS, FOLDER, RUN, drawn, streamed, whole
from tests.api.golden_events import SEQUENCES

CHUNKS: dict[str, TypeAdapter[Any]] = {
    "chat_completions": TypeAdapter(ChatCompletionChunk),
    "completions": TypeAdapter(Completion),
}
ANSWERS: dict[str, TypeAdapter[Any]] = {
    "chat_completions": TypeAdapter(ChatCompletion),
    "completions": TypeAdapter(Completion),
}
FAILING = [name for name in SEQUENCES if name.startswith("fails")]
ENDING = [name for name in SEQUENCES if name not in FAILING]


def payloads(stream: bytes) -> list[dict[str, Any]]:
    frames = stream.decode().split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if not frame.startswith(":")]


def choice_deltas(stream: bytes, choice: int = 0) -> list[dict[str, Any]]:
    return [
        each for chunk in payloads(stream) for each in chunk.get("choices", ()) if each["index"] == choice
    ]


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("name", DIALECTS)
def test_frames_are_as_they_were(name: str, sequence: str) -> None:
    assert drawn(name, SEQUENCES[sequence]) == (FOLDER / name / f"{sequence}.txt").read_text()


@pytest.mark.parametrize("name", DIALECTS)
def test_no_golden_file_is_left_over(name: str) -> None:
    assert {path.stem for path in (FOLDER / name).iterdir()} == set(SEQUENCES)


@pytest.mark.parametrize("sequence", ENDING)
def test_openais_types_take_every_chunk_of_a_chat(sequence: str) -> None:
    for payload in payloads(streamed("chat_completions", SEQUENCES[sequence])):
        CHUNKS["chat_completions"].validate_python(payload, strict=True)


@pytest.mark.parametrize("sequence", ENDING)
def test_openais_types_take_the_whole_answer_of_a_chat(sequence: str) -> None:
    ANSWERS["chat_completions"].validate_json(whole("chat_completions", SEQUENCES[sequence]), strict=True)


@pytest.mark.parametrize("sequence", [name for name in ENDING if name != "prompt_echo"])
def test_openais_types_take_the_whole_answer_of_a_completion(sequence: str) -> None:
    # The prompt's first token has no logprob: null, as in OpenAI's own answers, though not in its types.
    ANSWERS["completions"].validate_json(whole("completions", SEQUENCES[sequence]), strict=True)


@pytest.mark.parametrize("sequence", ENDING)
def test_chunks_add_up_to_the_whole_chat_answer(sequence: str) -> None:
    events = SEQUENCES[sequence]
    answer = json.loads(whole("chat_completions", events))
    stream = streamed("chat_completions", events)
    for number, choice in enumerate(answer["choices"]):
        deltas = [each["delta"] for each in choice_deltas(stream, number)]
        message = choice["message"]
        assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert thought == message.get("reasoning_content", "")
        calls: dict[int, str] = {}
        for delta in deltas:
            for call in delta.get("tool_calls", ()):
                calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
        wanted = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        assert list(calls.values()) == wanted
        logprobs = [
            token
            for each in choice_deltas(stream, number)
            for token in (each["logprobs"] or {}).get("content", ())
        ]
        assert logprobs == choice["logprobs"]["content"]
    assert payloads(stream)[-1]["usage"] == answer["usage"]


@pytest.mark.parametrize("sequence", ENDING)
def test_chunks_add_up_to_the_whole_completion(sequence: str) -> None:
    events = SEQUENCES[sequence]
    stream = streamed("completions", events)
    for number, choice in enumerate(json.loads(whole("completions", events))["choices"]):
        chunks = choice_deltas(stream, number)
        if not any(kind in sequence for kind in ("tool", "call")):
            assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        offsets = [offset for chunk in chunks for offset in (chunk["logprobs"] or {}).get("text_offset", ())]
        assert offsets == choice["logprobs"]["text_offset"]
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("sequence", FAILING)
@pytest.mark.parametrize("name", DIALECTS)
def test_a_failing_stream_ends_with_the_error_and_done(name: str, sequence: str) -> None:
    last = payloads(streamed(name, SEQUENCES[sequence]))[-1]
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last == json.loads(whole(name, SEQUENCES[sequence]))


def test_the_role_comes_first_for_every_choice() -> None:
    stream = streamed("chat_completions", SEQUENCES["two_choices"])
    assert [choice_deltas(stream, number)[0]["delta"]["role"] for number in (0, 1)] == ["assistant"] * 2


def test_all_chunks_share_id_and_time() -> None:
    chunks = payloads(streamed("chat_completions", SEQUENCES["two_tool_calls"]))
    assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {("chatcmpl-0123", 1_700_000_000)}


def test_usage_comes_only_when_asked() -> None:
    stream = streamed("chat_completions", SEQUENCES["text"], stream_options=None)
    assert all("usage" not in chunk and chunk["choices"] for chunk in payloads(stream))
    assert payloads(stream)[-1]["timings"]["predicted_n"] == 2


def test_asked_for_usage_is_null_until_the_last_chunk_which_has_no_choices() -> None:
    *chunks, last = payloads(streamed("chat_completions", SEQUENCES["cached"]))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 8


def test_continuous_usage_counts_along() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = streamed("chat_completions", SEQUENCES["long_text"], stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in payloads(stream)]
    assert counts == [0, *range(1, 41), 40, 40]


@pytest.mark.parametrize("dialect", list(CHUNKS))
def test_a_stream_tells_how_far_the_prompt_is_where_it_is_asked(dialect: str) -> None:
    """In llama.cpp's words: four whole numbers beside an empty choice, in chunks that OpenAI's types take.

    The order is the one that its own test holds (`test_return_progress` in tools/server/tests/unit).
    """
    accepted, *others = SEQUENCES["text"]
    events = [accepted, Progress(16, 24, 8, 0.25), Progress(24, 24, 8, 0.5), *others]
    chunks = payloads(streamed(dialect, events, return_progress=True))
    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    found = [chunk["prompt_progress"] for chunk in told]
    assert all(each.keys() == {"total", "cache", "processed", "time_ms"} for each in found)
    assert [(each["processed"], each["cache"]) for each in found] == [(8, 8), (16, 8), (24, 8)]
    assert all(each["total"] == 24 for each in found)
    assert [each["time_ms"] for each in found] == [0, 250, 500]
    assert [each["time_ms"] for each in found] == sorted(each["time_ms"] for each in found)
    for chunk in told:
        if dialect == "chat_completions":  # the other type has no chunks, whose end is still open
            CHUNKS[dialect].validate_python(chunk)
        assert chunk["usage"] is None
        [choice] = chunk["choices"]
        assert not choice.get("delta")
        assert not choice.get("text")
    assert "prompt_progress" not in json.dumps(payloads(streamed(dialect, events)))


def test_progress_of_several_prompts_is_told_beside_the_choice_of_each() -> None:
    dialect = DIALECTS["completions"]
    body = {"model": "golden", "prompt": ["a", "b"], "n": 2, "stream": True, "return_progress": True}
    encoder = dialect.encoder(dialect.decode(json.dumps(body).encode(), DecodeContext()).shape, RUN)
    frames = encoder.start([Accepted(3), Accepted(5)])
    for progress, request in ((Progress(3, 3, 2), 0), (Progress(0, 5), 1), (Progress(4, 5), 1)):
        frames += encoder.event(progress, request)
    chunks = payloads(frames + b"data: [DONE]\n\n")
    told = [(chunk["choices"][0]["index"], chunk["prompt_progress"]) for chunk in chunks]
    assert [(index, each["processed"], each["total"]) for index, each in told] == [
        (0, 2, 3),
        (0, 3, 3),
        (2, 0, 5),
        (2, 4, 5),
    ]


def test_progress_frames_are_those_of_llama_cpp() -> None:
    """As its server writes them (server-task.cpp): names, their order, and the place in the chunk."""
    accepted, *others = SEQUENCES["text"]
    stream = streamed("completions", [accepted, Progress(237, 237, 230), *others], return_progress=True)
    told = [line for line in stream.decode().split("\n\n") if "prompt_progress" in line]
    form = (
        r'data: \{"id":"[^"]+","object":"text_completion","created":\d+,"model":"[^"]+","system_fingerprint":"[^"]+",'
        r'"choices":\[\{"index":0,"text":"","logprobs":null,"finish_reason":null\}\],"usage":null,'
        r'"prompt_progress":\{"total":237,"cache":230,"processed":(\d+),"time_ms":\d+\}\}'
    )
    matches = [re.fullmatch(form, line) for line in told]
    assert all(matches), told
    assert [match[1] for match in matches if match] == ["230", "237"]


def test_a_prompt_that_is_computed_again_is_told_of_once() -> None:
    """As after it was preempted: `processed` never falls, and `cache` stays what it was."""
    accepted, *others = SEQUENCES["text"]
    again = [
        Progress(0, 24),
        Progress(16, 24),
        Progress(16, 24, 16),
        Progress(16, 24, 16),
        Progress(24, 24, 16),
    ]
    chunks = payloads(streamed("chat_completions", [accepted, *again, *others], return_progress=True))
    found = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(each["processed"], each["cache"]) for each in found] == [(0, 0), (16, 0), (24, 0)]


def test_hidden_reasoning_stays_hidden_but_is_counted() -> None:
    for text in (
        streamed("chat_completions", SEQUENCES["reasoning_then_text"], include_reasoning=False),
        whole("chat_completions", SEQUENCES["reasoning_then_text"], reasoning={"exclude": True}),
    ):
        assert b"think" not in text
        assert b'"reasoning_tokens":3' in text


def test_text_without_calls_is_never_null() -> None:
    for sequence in ("empty", "reasoning_only_cut"):
        answer = json.loads(whole("chat_completions", SEQUENCES[sequence]))
        assert answer["choices"][0]["message"]["content"] == ""


def test_offsets_of_legacy_logprobs_count_characters_of_the_text() -> None:
    choice = json.loads(whole("completions", SEQUENCES["prompt_echo"]))["choices"][0]
    assert choice["text"] == "The sky is"
    assert choice["logprobs"]["tokens"] == ["The", " sky", " is"]
    assert choice["logprobs"]["text_offset"] == [0, 3, 7]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -0.25]
    assert choice["logprobs"]["top_logprobs"][0] is None


def test_half_a_character_is_spelled_in_bytes() -> None:
    choice = json.loads(whole("completions", SEQUENCES["logprobs_of_split_character"]))["choices"][0]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80"]
    assert choice["logprobs"]["text_offset"] == [0, 0]


def test_several_prompts_count_their_choices_through() -> None:
    from pippin.api.dialects.base import DecodeContext
    from pippin.core.completion import collect
    from tests.api.dialects.openai_golden import RUN

    body = b'{"model":"m","prompt":["a","b","c"],"n":2,"stream":true}'
    dialect = DIALECTS["completions"]
    events: list[Event] = SEQUENCES["two_choices"]
    encoder = dialect.encoder(dialect.decode(body, DecodeContext()).shape, RUN)
    out = encoder.start([])
    for request in (2, 0, 1):
        out += b"".join(encoder.event(event, request) for event in events)
    texts: dict[int, str] = {}
    for chunk in payloads(out + encoder.end()):
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {number: ("left side", "right")[number % 2] for number in range(6)}
    answer = json.loads(encoder.whole([collect(events)] * 3))
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == 36


@pytest.mark.parametrize("name", DIALECTS)
def test_usage_tells_how_many_proposed_tokens_were_right(name: str) -> None:
    events: list[Event] = [
        Accepted(3),
        Finished(0, "stop", None, Usage(completion_tokens=9, draft_tokens=12, accepted_tokens=5)),
    ]
    answer = whole(name, events)
    details = json.loads(answer)["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (5, 7)
    timings = json.loads(answer)["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (12, 5)
