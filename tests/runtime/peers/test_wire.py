"""What a peer is asked and what it answers, held against Pippin's own Chat Completions: nothing is lost on the way."""

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pippin.api.dialects.base import RunInfo
from pippin.api.dialects.chat.dialect import ChatRequest, request_of
from pippin.api.dialects.chat.encode import ChatEncoder, ChatShape
from pippin.api.dialects.shared.openai import StreamShape
from pippin.core.completion import Completion
from pippin.core.conversation import (
    Audio,
    Image,
    Inline,
    Message,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Video,
)
from pippin.core.errors import ServerError
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
from pippin.core.requests import (
    AskedDiffusion,
    Choice,
    GenerationRequest,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Sampling,
    Thinking,
)
from pippin.runtime.peers.replies import (
    AnswerReader,
    BrokenReply,
    SentEvents,
    ServerErrorInStream,
    models_of,
    refusal,
)
from pippin.runtime.peers.requests import upstream_of

HELLO = (Message("user", (Text("hello"),)),)
WEATHER = Tool("weather", "Tells it.", {"type": "object", "properties": {}}, True)
SHOWN = Image(Inline(b"\x89PNG rest", "image/png"), "high", field="messages[1].content[1]")
SPOKEN = Audio(Inline(b"RIFFwave"), "wav", "messages[2].content[0]")
LONG = (
    Message("system", (Text("Be kind."),)),
    Message("user", (Text("look"), SHOWN), "ann"),
    Message("user", (SPOKEN, Text("and listen"))),
    Message("assistant", (Reasoning("hm"), Text("I ask."), ToolCall("c1", "weather", "{}"))),
    Message("tool", (ToolResult("c1", (Text("rain"),), "weather"),)),
    Message("assistant", (ToolCall("c2", "weather", '{"a":1}'),)),
    Message("tool", (ToolResult("c2", (Text("sun"),)),)),
)


def asked(**fields: object) -> GenerationRequest:
    return GenerationRequest(**{"model": "m", "messages": HELLO, **fields})  # type: ignore[arg-type]


REQUESTS = {
    "plain": asked(),
    "long": asked(messages=LONG),
    "sampling": asked(
        sampling=Sampling(
            temperature=0.5, top_k=3, min_p=0.1, seed=7, dry_multiplier=0.8, logit_bias={5: -1.0}
        )
    ),
    "tools": asked(tools=(WEATHER,), tool_choice=ToolChoice("required"), parallel_tool_calls=False),
    "named tool": asked(tools=(WEATHER,), tool_choice=ToolChoice("required", ("weather",))),
    "allowed tools": asked(tools=(WEATHER,), tool_choice=ToolChoice("auto", ("weather",))),
    "object": asked(output_format=JsonObject()),
    "compact object": asked(output_format=JsonObject(compact=True)),
    "schema": asked(output_format=JsonSchema({"type": "object"}, "answer", False)),
    "regex": asked(output_format=Regex("a+")),
    "choice": asked(output_format=Choice(("a", "b"))),
    "grammar": asked(output_format=Grammar("lark", 'start: "a"')),
    "limits": asked(stop=("x", "y"), max_tokens=9, min_tokens=2, n=3, logprobs=2, ignore_eos=True),
    "engine": asked(stop_token_ids=(4,), include_stop=True, adapter="poet", priority=3, cache_salt="s"),
    "diffusion": asked(diffusion=AskedDiffusion(block_length=8, threshold=0.5, diffusion_full_canvas=True)),
    "thinking": asked(
        thinking=Thinking(enabled=False, budget=9, effort="low", start_marker="<t>", end_marker="</t>")
    ),
    "template": asked(template_kwargs={"date": "today"}, tool_format="qwen", read_calls=False),
    "prefill": asked(
        messages=(*HELLO, Message("assistant", (Text("It is"),))), continue_final=True, overflow="truncate"
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_pippin_reads_what_was_asked(name: str) -> None:
    request = REQUESTS[name]
    body = json.dumps(upstream_of(request, "m", pippin=True).body)
    found = request_of(msgspec.json.decode(body, type=ChatRequest))
    assert msgspec.structs.replace(found, names=()) == request


FIELDS_OF_OTHERS = {
    "min_p": asked(sampling=Sampling(min_p=0.1)),
    "structured_outputs": asked(output_format=Regex("a+")),
    "adapter_path": asked(adapter="poet"),
    "thinking_budget": asked(thinking=Thinking(budget=9)),
    "min_tokens": asked(min_tokens=2),
    "truncation": asked(overflow="truncate"),
    "block_length": asked(diffusion=AskedDiffusion(block_length=8)),
}


@pytest.mark.parametrize("field", FIELDS_OF_OTHERS)
def test_a_server_that_is_no_pippin_is_not_asked_what_it_has_no_word_for(field: str) -> None:
    with pytest.raises(ServerError) as refused:
        upstream_of(FIELDS_OF_OTHERS[field], "m", pippin=False)
    assert refused.value.report.kind == "unsupported"
    assert refused.value.report.param == field


@pytest.mark.parametrize("name", ["plain", "long", "tools", "named tool", "schema", "object"])
def test_other_servers_are_asked_in_openais_words_alone(name: str) -> None:
    from openai.types.chat import completion_create_params

    body = upstream_of(replace(REQUESTS[name], cache_salt="s"), "m", pippin=False).body
    known = completion_create_params.CompletionCreateParamsStreaming.__annotations__
    base = completion_create_params.CompletionCreateParamsBase.__annotations__
    assert set(body) <= set(known) | set(base)


def test_a_parameter_that_does_nothing_is_no_reason_to_refuse() -> None:
    assert upstream_of(asked(sampling=Sampling(min_p=0.0, top_k=0)), "m", pippin=False)


def test_a_raw_prompt_goes_to_completions() -> None:
    upstream = upstream_of(asked(messages=None, prompt=(1, 2), suffix="end"), "m", pippin=True)
    assert upstream.path == "/v1/completions"
    assert (upstream.body["prompt"], upstream.body["suffix"]) == ([1, 2], "end")


def stream(events: list[Event], *, n: int = 1, logprobs: bool = False, progress: bool = True) -> bytes:
    """The events as Pippin's Chat Completions send them."""
    shape = ChatShape(stream=StreamShape(usage=True, progress=progress), n=n, logprobs=logprobs)
    encoder = ChatEncoder(shape, RunInfo(id="r", created=1, model="m", fingerprint="f"))
    accepted = [event for event in events if isinstance(event, Accepted)]
    rest = [event for event in events if not isinstance(event, Accepted)]
    return encoder.start(accepted) + b"".join(map(encoder.event, rest)) + encoder.end()


def read(data: bytes, *, n: int = 1, progress: bool = True, cut: int = 7) -> list[Event]:
    """The events of a stream that arrives in pieces of `cut` bytes."""
    reader, sent = AnswerReader(n, tells_progress=progress), SentEvents()
    events = list(reader.begun())
    for start in range(0, len(data), cut):
        for each in sent.feed(data[start : start + cut]):
            events += reader.chunk(each)
    return [*events, *reader.end()]


def completed(events: list[Event]) -> Completion:
    completion = Completion()
    for event in events:
        completion.add(event)
    return completion


ANSWER: list[Event] = [
    Accepted(12),
    Progress(12, 12, 4),
    PartStarted(0, 0, "reasoning"),
    PartDelta(0, 0, "hm"),
    PartEnded(0, 0),
    PartStarted(0, 1, "text"),
    PartDelta(0, 1, "It ", completed=2),
    PartDelta(0, 1, "rains.", completed=3),
    PartEnded(0, 1),
    PartStarted(0, 2, "tool_call", "c1", "weather"),
    PartDelta(0, 2, '{"city":', completed=4),
    PartDelta(0, 2, '"Oslo"}', completed=5),
    PartEnded(0, 2),
    PartStarted(0, 3, "tool_call", "c2", "weather"),
    PartDelta(0, 3, "{}", completed=6),
    PartEnded(0, 3),
    Finished(
        0,
        "tool_calls",
        None,
        Usage(prompt_tokens=12, cached_tokens=4, completion_tokens=6, reasoning_tokens=1),
    ),
]


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"RIFF0000AVI rest", "video/x-msvideo"),
        (b"RIFF0000WEBPrest", "image/webp"),
        (b"\x89PNG rest", "image/png"),
        (b"no known format", "video/mp4"),
    ],
)
def test_inline_media_without_a_type_get_the_one_that_their_first_bytes_tell(
    data: bytes, media_type: str
) -> None:
    messages = (Message("user", (Video(Inline(data)),)),)
    body = upstream_of(asked(messages=messages), "m", pippin=False).body
    assert body["messages"][0]["content"][0]["video_url"]["url"].startswith(f"data:{media_type};base64,")


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_an_answer_is_read_back_as_it_was(cut: int) -> None:
    events = read(stream(ANSWER), cut=cut)
    assert events[0] == Accepted(12)
    [there], [here] = completed(ANSWER).choices, completed(events).choices
    assert [(part.kind, part.text, part.id, part.name) for part in here.parts] == [
        (part.kind, part.text, part.id, part.name) for part in there.parts
    ]
    assert here.finished == there.finished


def test_choices_and_log_probabilities_are_read_back() -> None:
    events: list[Event] = [Accepted(3)]
    for choice in (1, 0):
        token = Token(5, b"hi", -0.5)
        events += [
            PartStarted(choice, 0, "text"),
            PartDelta(choice, 0, "hi", (token,), 1),
            PartEnded(choice, 0),
            Finished(choice, "stop", None, Usage(prompt_tokens=3, completion_tokens=1)),
        ]
    back = read(stream(events, n=2, logprobs=True), n=2)
    choices = completed(back).choices
    assert [choice.text("text") for choice in choices] == ["hi", "hi"]
    assert [(token.raw, token.logprob) for token in choices[1].tokens("text")] == [(b"hi", -0.5)]
    assert sum(event.usage.completion_tokens for event in back if isinstance(event, Finished)) == 2


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    whole = stream(ANSWER)
    with pytest.raises(BrokenReply):
        read(whole[: whole.index(b"tool_calls")])


def test_an_error_in_a_stream_and_chunks_that_are_none_are_told_apart_from_answers() -> None:
    with pytest.raises(ServerErrorInStream, match="died"):
        read(b'data: {"error": {"message": "It died."}}\n\n')
    with pytest.raises(BrokenReply):
        read(b"data: <html>\n\n")
    with pytest.raises(BrokenReply):
        read(b'data: {"choices": [{"index": 5}]}\n\n')


@pytest.mark.parametrize(
    "chunk",
    [
        {"usage": {"prompt_tokens": 3, "completion_tokens": -1_000_000}},
        {"usage": {"prompt_tokens": 1 << 60}},
        {"usage": {"completion_tokens_details": {"reasoning_tokens": -1}}},
        {"prompt_progress": {"total": -5}},
        {"timings": {"prompt_ms": -1.0}},
    ],
)
def test_counts_that_no_answer_has_are_not_believed(chunk: Any) -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    sent = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (chunk, end))
    with pytest.raises(BrokenReply, match="can't be read"):
        read(sent)


def test_what_is_said_after_the_end_of_a_choice_is_left_out() -> None:
    def chunk(text: str, end: str | None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": end}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    events = read(chunk("a", None) + chunk("", "stop") + chunk("b", None) + chunk("", "length"))
    kinds = [type(event) for event in events]
    assert kinds == [Accepted, PartStarted, PartDelta, PartEnded, Finished]
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"


def test_models_whose_names_cannot_be_shown_are_left_out() -> None:
    names = ["fine", "", "two\nlines", "\x1b[2J", "x" * 1000]
    listed = {"data": [{"id": name} for name in names]}
    assert [info.id for info in models_of(json.dumps(listed).encode())[0]] == ["fine"]


def test_a_refusal_keeps_the_words_and_the_field_of_who_refused() -> None:
    body = b'{"error": {"message": "Too long.", "param": "messages", "code": "context_length_exceeded"}}'
    report = refusal(400, body)
    assert (report.kind, report.message, report.param) == ("context_length_exceeded", "Too long.", "messages")
    assert refusal(400, b"<html>").status == 400


def test_only_models_that_generate_text_are_taken_and_a_pippin_is_known_by_its_list() -> None:
    listed = [
        {
            "id": "a",
            "owned_by": "pippin",
            "kind": "language",
            "context_window": 99,
            "capabilities": {"chat": True},
        },
        {"id": "b", "owned_by": "pippin", "kind": "embeddings"},
    ]
    models, is_pippin = models_of(json.dumps({"data": listed}).encode())
    assert ([info.id for info in models], models[0].context_window, is_pippin) == (["a"], 99, True)
    models, is_pippin = models_of(b'{"object": "list", "data": [{"id": "x", "object": "model"}]}')
    assert ([info.id for info in models], models[0].remote, is_pippin) == (["x"], True, False)
