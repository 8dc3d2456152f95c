"""The scripted engine, stepped in this process: what a script says is what comes out."""

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.completion import Completion, collect
from pippin.core.conversation import Message, Text, Tool, ToolCall, ToolChoice, ToolResult
from pippin.core.errors import ServerError
from pippin.core.events import (
    Counted,
    Detokenized,
    Embedded,
    Event,
    Finished,
    Picture,
    PromptEcho,
    Ranked,
    Segment,
    SpeechChunk,
    Spoken,
    Tokenized,
    Transcribed,
)
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import Choice, GenerationRequest, JsonSchema, Sampling, Thinking
from pippin.core.tasks import (
    CountTokens,
    Detokenize,
    Embed,
    Generate,
    GenerateImages,
    Rerank,
    RerankDocument,
    Speak,
    Task,
    Tokenize,
    Transcribe,
)
from pippin.engines.scripted import open_engine, open_preparer, tokenizer
from pippin.engines.scripted.preparer import ScriptedPreparer
from pippin.output.reader import StopFinder
from tests.service.doubles import write_script

WEATHER = Tool("weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})


def prepared(folder: Path, *rules: dict[str, Any], options: dict[str, Any] | None = None, **script: Any):  # type: ignore[no-untyped-def]
    path = write_script(folder, *rules, **script)
    info = ModelInfo(id="m", kind="scripted", path=str(path))
    return open_preparer(WorkerSpec(info=info, options=options or {}))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def request(*messages: Message, **fields: Any) -> GenerationRequest:
    return GenerationRequest(model="m", messages=messages or (user("Hi"),), **fields)


def events(preparer: ScriptedPreparer, wanted: GenerationRequest) -> list[Event]:
    spec = WorkerSpec(info=preparer.info)
    engine = open_engine(spec, preparer, lambda done, total, message: None)
    job = preparer.prepare("r", Generate(wanted))
    assert not isinstance(job, tuple)
    engine.submit(job)
    found: list[Event] = []
    while engine.busy:
        found += [event for _, event in engine.step()]
    return found


def played(preparer: ScriptedPreparer, wanted: GenerationRequest) -> Completion:
    return collect(events(preparer, wanted))


def said(preparer: ScriptedPreparer, wanted: GenerationRequest) -> str:
    return played(preparer, wanted).choices[0].text("text")


def finished(completion: Completion, choice: int = 0) -> Finished:
    last = completion.choices[choice].finished
    assert last is not None
    return last


def one(preparer: ScriptedPreparer, task: Task) -> tuple[Event, ...]:
    answer = preparer.prepare("r", task)
    assert isinstance(answer, tuple)
    return answer


@pytest.mark.parametrize("text", ["", "Hello, world!", "  a\n\tb", "naïve café 日本語 👩‍👩‍👧 x" * 3])
def test_tokens_hold_the_text(text: str) -> None:
    assert "".join(tokenizer.pieces(text)) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert all(0 < token < 2**41 + 2**40 for token in tokenizer.encode(text))


def test_the_first_rule_that_holds_answers_and_else_the_echo(tmp_path: Path) -> None:
    preparer = prepared(
        tmp_path,
        {"when": {"user": "(?i)hello", "system": "brief"}, "say": "Hi."},
        {"when": {"user": "(?i)hello"}, "say": "Good morning to you."},
        {"when": {"turn": 2}, "say": "Again?"},
    )
    assert said(preparer, request(Message("system", (Text("Be brief."),)), user("Hello"))) == "Hi."
    assert said(preparer, request(user("hello"))) == "Good morning to you."
    again = request(user("x"), Message("assistant", (Text("y"),)), user("z"))
    assert said(preparer, again) == "Again?"
    assert said(preparer, request(user("Something else"))) == "Something else"
    assert said(preparer, GenerationRequest(model="m", prompt="a raw prompt")) == "a raw prompt"


def test_limits_and_stop_strings_cut_with_the_right_reason(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"say": ["one", " t", "wo", " three", " four"]})
    cut = played(preparer, request(max_tokens=2))
    assert cut.choices[0].text("text") == "one t"
    assert (finished(cut).reason, finished(cut).usage.completion_tokens) == ("length", 2)
    stopped = played(preparer, request(stop=("two",)))
    assert stopped.choices[0].text("text") == "one "
    assert (finished(stopped).reason, finished(stopped).stop_sequence) == ("stop", "two")
    assert finished(stopped).usage.completion_tokens == 3
    assert said(preparer, request(stop=("two",), include_stop=True)) == "one two"
    assert finished(played(preparer, request(max_tokens=5))).reason == "stop"
    assert finished(played(preparer, request(max_tokens=0))).reason == "length"
    assert said(preparer, request(ignore_eos=True, max_tokens=7)) == "one two three fourone t"


@pytest.mark.parametrize("stops", [("ne two", "e"), ("wo", "two"), ("two three", "t", " th")])
def test_the_stop_string_that_is_complete_first_ends_the_answer_as_of_any_model(
    tmp_path: Path, stops: tuple[str, ...]
) -> None:
    finder = StopFinder(stops)
    shown = finder.feed("one two three")
    answer = played(prepared(tmp_path, {"say": "one two three"}), request(stop=stops))
    assert (answer.choices[0].text("text"), finished(answer).stop_sequence) == (shown, finder.found)


def test_stop_strings_do_not_cut_reasoning_as_of_any_model(tmp_path: Path) -> None:
    for told in ({"say": "<think>One two.</think>Three two."}, {"think": "One two.", "say": "Three two."}):
        answer = played(prepared(tmp_path, told), request(stop=("two",))).choices[0]
        assert (answer.text("reasoning"), answer.text("text")) == ("One two.", "Three ")
    open_end = played(prepared(tmp_path, {"say": "<think>One two."}), request(stop=("two",))).choices[0]
    assert open_end.text("reasoning") == "One two."


def test_a_stop_string_inside_a_call_leaves_nothing_of_it(tmp_path: Path) -> None:
    preparer = prepared(
        tmp_path, {"say": "So.", "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
    )
    answer = played(preparer, request(tools=(WEATHER,), stop=("Oslo",)))
    assert [part.kind for part in answer.choices[0].parts] == ["text"]
    assert (answer.choices[0].text("text"), finished(answer).stop_sequence) == ("So.", "Oslo")


def test_an_end_of_reasoning_alone_splits_what_is_said(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"say": "Let me see.</think>Done."})
    answer = played(preparer, request()).choices[0]
    assert (answer.text("reasoning"), answer.text("text")) == ("Let me see.", "Done.")
    settled = played(preparer, request(thinking=Thinking(enabled=False))).choices[0]
    assert settled.text("text") == "Let me see.</think>Done."


def test_thinking_is_reasoning_and_honours_its_budget(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"think": "Let me see here", "say": "Done."})
    thought = played(preparer, request())
    assert thought.choices[0].text("reasoning") == "Let me see here"
    assert thought.choices[0].text("text") == "Done."
    assert finished(thought).usage.reasoning_tokens > 0
    short = played(preparer, request(thinking=Thinking(budget=2)))
    assert short.choices[0].text("reasoning") == "Let me"
    assert played(preparer, request(thinking=Thinking(enabled=False))).choices[0].text("reasoning") == ""


def test_an_agent_calls_a_tool_and_answers_from_its_result(tmp_path: Path) -> None:
    call = {"name": "weather", "arguments": {"city": "Oslo"}}
    preparer = prepared(
        tmp_path,
        {"when": {"tool_result": "rain"}, "say": "Take an umbrella."},
        {"when": {"user": "weather"}, "say": "I look. ", "calls": [call]},
    )
    first = played(preparer, request(user("How is the weather?"), tools=(WEATHER,)))
    [text, part] = first.choices[0].parts
    assert (text.text.strip(), part.kind, part.name) == ("I look.", "tool_call", "weather")
    assert json.loads(part.text) == {"city": "Oslo"}
    assert finished(first).reason == "tool_calls"
    asked = Message("assistant", (ToolCall("c1", "weather", part.text),))
    result = Message("tool", (ToolResult("c1", (Text("rain, 8 degrees"),)),))
    second = request(user("How is the weather?"), asked, result, tools=(WEATHER,))
    assert said(preparer, second) == "Take an umbrella."


def test_calls_that_are_not_to_be_read_stay_text(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"say": "I look. ", "calls": [{"name": "weather"}]})
    answer = played(preparer, request(tools=(WEATHER,), read_calls=False))
    assert [part.kind for part in answer.choices[0].parts] == ["text"]
    assert "<tool_call>" in answer.choices[0].text("text")
    assert finished(answer).reason == "stop"


def test_tools_that_are_not_offered_or_not_wanted_are_not_called(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"say": "No.", "calls": [{"name": "weather"}]})
    assert finished(played(preparer, request())).reason == "stop"
    silent = request(tools=(WEATHER,), tool_choice=ToolChoice("none"))
    assert finished(played(preparer, silent)).reason == "stop"
    other = Tool("clock", parameters={"type": "object", "required": ["zone"]})
    forced = played(preparer, request(tools=(other,), tool_choice=ToolChoice("required", ("clock",))))
    assert forced.choices[0].parts[-1].name == "clock"
    assert finished(forced).reason == "tool_calls"


def test_one_call_is_enough_without_parallel_calls(tmp_path: Path) -> None:
    calls = [{"name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Rome")]
    preparer = prepared(tmp_path, {"calls": calls})
    both = played(preparer, request(tools=(WEATHER,)))
    assert [part.kind for part in both.choices[0].parts] == ["tool_call", "tool_call"]
    single = played(preparer, request(tools=(WEATHER,), parallel_tool_calls=False))
    assert [part.kind for part in single.choices[0].parts] == ["tool_call"]


def test_choices_differ_by_seed_and_repeat_with_it(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"any_of": [f"answer {number}" for number in range(50)]})

    def choices(seed: int) -> list[str]:
        completion = played(preparer, request(n=4, sampling=Sampling(seed=seed)))
        return [choice.text("text") for choice in completion.choices]

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)
    assert len(set(choices(1))) > 1
    assert said(preparer, request(sampling=Sampling(temperature=0.0))) == "answer 0"


def test_output_formats_are_met_where_no_rule_speaks(tmp_path: Path) -> None:
    preparer = prepared(tmp_path)
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 3}, "name": {"enum": ["Ann"]}},
    }
    assert json.loads(said(preparer, request(output_format=JsonSchema(schema)))) == {"age": 3, "name": "Ann"}
    assert said(preparer, request(output_format=Choice(("yes", "no")))) == "yes"


def test_logprobs_and_the_echo_of_the_prompt(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, {"say": "one two"})
    found = events(preparer, request(logprobs=2, echo=True, prompt_logprobs=0))
    [echo] = [event for event in found if isinstance(event, PromptEcho)]
    assert echo.text.startswith("<|user|>Hi")
    assert echo.tokens[0].logprob is None
    tokens = collect(found).choices[0].tokens("text")
    assert [token.raw for token in tokens] == [b"one", b" two"]
    assert all(len(token.top) == 2 and token.top[0].logprob == token.logprob for token in tokens)


def test_what_does_not_fit_the_window_is_refused_or_truncated(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, context_window=40)
    long = [user(f"message {number} of the conversation") for number in range(6)]
    with pytest.raises(ServerError) as refused:
        preparer.prepare("r", Generate(request(*long)))
    assert refused.value.report.kind == "context_length_exceeded"
    job = preparer.prepare("r", Generate(request(*long, overflow="truncate")))
    assert not isinstance(job, tuple)
    assert "message 0" not in job.prompt
    assert job.accepted.prompt_tokens < 40
    lowered = prepared(tmp_path, context_window=40, options={"context_length": 5})
    assert lowered.info.context_window == 5


def test_counting_agrees_with_what_is_accepted(tmp_path: Path) -> None:
    preparer = prepared(tmp_path)
    wanted = request(user("Count me, please"), tools=(WEATHER,))
    job = preparer.prepare("r", Generate(wanted))
    assert not isinstance(job, tuple)
    assert one(preparer, CountTokens(wanted)) == (Counted(job.accepted.prompt_tokens),)


def test_tokenizing_goes_back_and_forth(tmp_path: Path) -> None:
    preparer = prepared(tmp_path)
    [tokenized] = one(preparer, Tokenize("Hello, you", with_pieces=True))
    assert isinstance(tokenized, Tokenized)
    assert b"".join(tokenized.pieces) == b"Hello, you"
    assert one(preparer, Detokenize(tokenized.tokens)) == (Detokenized("Hello, you"),)


def test_embeddings_of_like_texts_are_closer(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, dimensions=64)
    [embedded] = one(preparer, Embed(inputs=("the red cat", "the red dog", "quantum flux")))
    assert isinstance(embedded, Embedded)
    rows = [struct.unpack_from("<64f", embedded.vectors, 256 * row) for row in range(3)]

    def product(first: int, second: int) -> float:
        return sum(a * b for a, b in zip(rows[first], rows[second], strict=True))

    assert product(0, 0) == pytest.approx(1.0, abs=1e-6)
    assert product(0, 1) > product(0, 2)


def test_documents_rank_by_the_words_they_share(tmp_path: Path) -> None:
    preparer = prepared(tmp_path)
    documents = tuple(RerankDocument((Text(text),)) for text in ("red cats", "blue sea"))
    [ranked] = one(preparer, Rerank(query="red cats", documents=documents))
    assert isinstance(ranked, Ranked)
    assert ranked.scores == (1.0, 0.0)


def test_speech_pictures_and_transcripts_have_their_forms(tmp_path: Path) -> None:
    preparer = prepared(tmp_path)
    *chunks, spoken = one(preparer, Speak(text="Hello", format="wav", stream=True))
    assert isinstance(spoken, Spoken)
    sound = b"".join(chunk.data for chunk in chunks if isinstance(chunk, SpeechChunk))
    assert sound.startswith(b"RIFF")
    pictures = [p for p in one(preparer, GenerateImages(prompt="x", n=2)) if isinstance(p, Picture)]
    assert [picture.data[:4] for picture in pictures] == [b"\x89PNG"] * 2
    assert pictures[0].data != pictures[1].data
    *segments, whole = one(preparer, Transcribe(audio=b"sound", filename="a.wav", words=True))
    assert isinstance(whole, Transcribed)
    assert whole.text == "".join(segment.text for segment in segments if isinstance(segment, Segment))


@pytest.mark.parametrize(
    "content",
    ["not json", '{"rules": [{"say": 3}]}', '{"rulez": []}', '{"rules": [{"when": {"user": "("}}]}'],
)
def test_a_broken_script_is_a_failed_load(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.script.json"
    path.write_text(content)
    with pytest.raises(ServerError, match="cannot be used") as failed:
        open_preparer(WorkerSpec(info=ModelInfo(id="m", kind="scripted", path=str(path))))
    assert failed.value.report.kind == "load_failed"


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    preparer = prepared(tmp_path, options={"queue_size": 1, "max_num_seqs": 1})
    assert preparer.options == ModelOptions(queue_size=1, max_num_seqs=1)
    engine = open_engine(WorkerSpec(info=preparer.info), preparer, lambda *_: None)
    engine.submit(preparer.prepare("a", Generate(request())))
    with pytest.raises(ServerError) as refused:
        engine.submit(preparer.prepare("b", Generate(request())))
    assert refused.value.report.status == 503
    engine.cancel("a")
    assert not engine.busy


BOMBS = (
    {"type": "array", "minItems": 10**9},
    {"type": "string", "minLength": 10**9},
    {"type": "array", "minItems": 10**9, "items": {"const": "word " * 1000}},
    {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {
        "type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000}}}},
    {"type": "object", "required": ["a"], "properties": {"a": {"type": "array", "minItems": 10**9}}},
)  # fmt: skip


@pytest.mark.parametrize("schema", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("by", ["schema", "call"])
def test_a_value_without_end_is_cut_at_the_limit_of_tokens_and_takes_little_memory(
    tmp_path: Path, schema: dict[str, Any], by: str
) -> None:
    wanted: dict[str, Any] = {"output_format": JsonSchema(schema)}
    if by == "call":
        parameters = {"type": "object", "required": ["v"], "properties": {"v": schema}}
        wanted = {"tools": (Tool("f", parameters=parameters),), "tool_choice": ToolChoice("required")}
    preparer = prepared(tmp_path, context_window=4096)
    tracemalloc.start()
    try:
        answer = finished(played(preparer, request(max_tokens=40, **wanted)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.reason, answer.usage.completion_tokens) == ("length", 40)
    assert most < 4 << 20
    whole = finished(played(preparer, request(**wanted)))
    assert whole.reason == "length"
    assert whole.usage.prompt_tokens + whole.usage.completion_tokens == 4096


@pytest.mark.parametrize(
    "schema",
    [{"type": "array", "minItems": "many"}, {"required": 5}, {"properties": []}, {"anyOf": {}}, {"type": []},
     {"type": "string", "minLength": 1e999}, {"type": "array", "minItems": -1}, {"required": [[1]]}],
)  # fmt: skip
def test_a_schema_that_is_none_still_has_an_answer(tmp_path: Path, schema: dict[str, Any]) -> None:
    json.loads(said(prepared(tmp_path), request(output_format=JsonSchema(schema))))
