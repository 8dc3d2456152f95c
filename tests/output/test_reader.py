"""What a reader decides, whatever the format: when a call is one, what is text, what is reasoning."""

import json
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.core.completion import collect
from pippin.core.conversation import ToolChoice
from pippin.core.events import PartDelta, PartStarted, Token
from pippin.output.formats import (
    reasoning_format,
    reasoning_formats,
    tool_format,
    tool_formats,
)
from pippin.output.reader import Formats, Markup, OutputReader, StopFinder, ToolUse
from tests.output.reading import OF_EACH_FORMAT, fold, read, reader_of
from tests.output.wire import SAMPLES, TOOLS, Sample

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
WEATHER = ("tool_call", "get_weather", '{"city": "Paris"}')


def parts(
    text: str, format: str | None = "hermes", reasoning: str | None = "qwen3", **options: object
) -> object:
    truncated = bool(options.pop("truncated", False))
    return fold(read(reader_of(format, reasoning, tools=TOOLS, **options), [text], truncated=truncated))  # type: ignore[arg-type]


# Tool calls


def test_text_before_between_and_after_calls_is_kept() -> None:
    assert parts(f"One. {CALL} two {CALL}\nthree\n") == (
        ("text", "One."),
        WEATHER,
        ("text", "two"),
        WEATHER,
        ("text", "three\n"),
    )


def test_white_space_between_calls_is_no_text() -> None:
    assert parts(f"{CALL}\n\n{CALL}\n") == (WEATHER, WEATHER)


def test_a_malformed_call_is_text() -> None:
    for text in (
        "<tool_call>not a call</tool_call>",
        "a <tool_call>{]</tool_call> b",
        "<tool_call>",
        "<tool_c",
    ):
        assert parts(text) == (("text", text),)


def test_a_call_without_a_name_is_text() -> None:
    text = '<tool_call>{"arguments": {"city": "Paris"}}</tool_call>'
    assert parts(text) == (("text", text),)


def test_a_call_after_a_malformed_one_is_read() -> None:
    assert parts(f"<tool_call>{CALL}") == (("text", "<tool_call>"), WEATHER)


def test_a_call_to_a_tool_nobody_offered_is_text() -> None:
    text = CALL.replace("get_weather", "get_stock")
    assert parts(text) == (("text", text),)


def test_bare_json_is_a_call_only_to_a_tool_on_offer() -> None:
    text = '{"name": "Paul", "parameters": {"age": 3}}'
    assert parts(text, "llama") == (("text", text),)
    assert parts(text.replace("Paul", "get_time"), "llama") == (("tool_call", "get_time", '{"age": 3}'),)


def test_a_json_answer_streams_at_its_first_foreign_key() -> None:
    reader = reader_of("llama", tools=TOOLS)
    events = [event for character in '{"city": "P' for event in reader.feed(character)]
    assert "".join(event.text for event in events if isinstance(event, PartDelta)) == '{"city": "P'


def test_nothing_of_a_call_is_sent_before_it_is_complete() -> None:
    reader = reader_of("hermes", tools=TOOLS)
    assert reader.feed(CALL.removesuffix("}</tool_call>")) == []
    assert fold(reader.feed("}</tool_call>")) == (WEATHER,)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\n"),
        ("glm47", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>"),
        ("minimax_m2", '<minimax:tool_call><invoke name="get_weather"><parameter name="city">'),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>'),
        ("pythonic", '<|tool_call_start|>[get_weather(city="'),
        ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>'),
    ],
)
def test_nothing_is_sent_of_a_call_that_is_cut_off(format: str, head: str) -> None:
    for value in ("Par", LONG):
        reader = reader_of(format, tools=TOOLS)
        assert reader.feed(head + value) + reader.feed("is") == []
        assert fold(reader.finish(truncated=True)) == ()
        assert reader.calls == 0


def test_arguments_before_the_name_wait_for_it() -> None:
    assert parts('<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>') == (
        WEATHER,
    )


def test_arguments_that_are_a_string_of_json_are_decoded() -> None:
    inner = json.dumps(json.dumps({"city": 'P"ar\nis é \U0001f600'}))
    ((_, _, arguments),) = parts(f'<tool_call>{{"name": "get_weather", "arguments": {inner}}}</tool_call>')  # type: ignore[misc]
    assert json.loads(arguments) == {"city": 'P"ar\nis é \U0001f600'}


def test_a_missing_brace_before_the_end_marker_is_made_good() -> None:
    assert parts('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"</tool_call>ok') == (
        WEATHER,
        ("text", "ok"),
    )


def test_line_breaks_and_wrong_escapes_in_strings_are_escaped() -> None:
    ((_, _, arguments),) = parts('<tool_call>{"name": "get_time", "arguments": {"a": "x\ny\\d"}}</tool_call>')  # type: ignore[misc]
    assert json.loads(arguments) == {"a": "x\ny\\d"}


def test_a_call_that_breaks_off_is_text() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"} oops}</tool_call> ok'
    assert parts(text) == (("text", text),)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
@OF_EACH_FORMAT
@given(data=st.data())
def test_no_word_around_calls_is_lost(sample: Sample, data: st.DataObject) -> None:
    channels = tool_format(sample.format).channels
    openers = tool_format(sample.format).openers
    pieces = [sample.wire] if not channels else ["<|start|>assistant<|channel|>final<|message|>"]
    words = [f"word{number} " for number in range(data.draw(st.integers(0, 5)))]
    for word in words:
        pieces.append(word)
        if openers and data.draw(st.booleans()):
            pieces.append(data.draw(st.sampled_from(openers)))
    reader = reader_of(sample.format, sample.reasoning, tools=TOOLS, thinking=sample.reasoning == "kimi_k3")
    whole = "".join(part[-1] for part in fold(read(reader, pieces)))
    assert all(word.strip() in whole for word in words), whole


def test_an_unclosed_block_is_closed_when_the_model_ended_but_not_when_it_was_cut_off() -> None:
    text = "<tool_call><function=get_weather>\n<parameter=city>\nParis"
    whole = reader_of("qwen3_coder", tools=TOOLS)
    assert fold(read(whole, [text])) == (WEATHER,)
    assert whole.calls == 1
    cut = reader_of("qwen3_coder", tools=TOOLS)
    assert fold(read(cut, [text], truncated=True)) == ()
    assert cut.calls == 0


def test_without_tools_markers_are_text() -> None:
    assert fold(read(reader_of("hermes"), [CALL])) == (("text", CALL),)


def test_tool_choice_none_keeps_calls_out() -> None:
    choice = ToolChoice(mode="none")
    assert parts(f"Sunny. {CALL} Bye.", choice=choice) == (("text", "Sunny."), ("text", "Bye."))


def test_without_parallel_calls_the_first_ends_the_row() -> None:
    reader = reader_of("hermes", tools=TOOLS, parallel=False)
    assert fold(read(reader, [CALL + "text" + CALL])) == (WEATHER,)
    assert reader.done
    assert reader.calls == 1


def test_without_parallel_calls_the_first_of_an_array_is_taken() -> None:
    text = '[TOOL_CALLS][{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {}}]'
    assert parts(text, "mistral", parallel=False) == (("tool_call", "get_time", "{}"),)


def test_call_ids_are_random_and_stable() -> None:
    reader = OutputReader(0, Formats(tools=tool_format("hermes")), ToolUse(tools=TOOLS))
    found = [part.id for part in collect(read(reader, [CALL + CALL])).choices[0].parts]
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", name or "") for name in found)
    assert len(set(found)) == 2


def test_mistral_gets_ids_of_nine_and_kimi_keeps_its_own() -> None:
    mistral = OutputReader(0, Formats(tools=tool_format("mistral")), ToolUse(tools=TOOLS))
    (part,) = collect(read(mistral, ["[TOOL_CALLS]get_time{}"])).choices[0].parts
    assert re.fullmatch(r"[A-Za-z0-9]{9}", part.id or "")
    kimi = reader_of("kimi_k2", tools=TOOLS)
    text = "<|tool_call_begin|>functions.get_time:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    (part,) = collect(read(kimi, [text])).choices[0].parts
    assert part.id == "functions.get_time:3"


# Reasoning


REASONING = [
    ("qwen3", "<think>\nHm.\n</think>\n\nHi."),
    ("deepseek_r1", "Hm.\n</think>\nHi."),
    ("deepseek_r1", "<think>Hm.</think>Hi."),
    ("mixed_think_tool_handoff", "<thinking>Hm.</thinking>Hi."),
    ("glm4", "<think>Hm.</think><|begin_of_box|>Hi.<|end_of_box|>"),
    ("mistral", "[THINK]Hm.[/THINK]Hi."),
    ("glm4_moe", "<think>Hm.</think><|begin_of_box|>Hi.<|end_of_box|>"),
    ("gemma4", "<|channel>thought\nHm.<channel|>Hi."),
    ("gemma4", "<|channel>thought\nHm.<|channel>response\nHi."),
    ("cohere", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi.<|END_RESPONSE|>"),
    ("solar_open", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hi."),
    ("minimax_m3", "<mm:think>Hm.</mm:think>Hi."),
    (
        "kimi_k3",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi.<|close|>response<|sep|>",
    ),
    ("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."),
    ("muse_spark", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>"),
]


@pytest.mark.parametrize(("reasoning", "text"), REASONING)
def test_reasoning_and_answer_are_told_apart(reasoning: str, text: str) -> None:
    expected = (("reasoning", "Hm."), ("text", "Hi."))
    assert parts(text, None, reasoning) == expected
    assert fold(read(reader_of(None, reasoning), list(text))) == expected


@given(st.integers(0, 40), st.booleans())
def test_reasoning_the_template_opened_needs_no_start(cut: int, ended: bool) -> None:
    text = "Hm, <b>\n</think>\n\nHi."
    reader = reader_of(None, "qwen3", thinking=True)
    assert fold(read(reader, [text[:cut], text[cut:]])) == (("reasoning", "Hm, <b>"), ("text", "Hi."))


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "qwen3_moe", "qwen3_next", "minimax_m2"])
@pytest.mark.parametrize("truncated", [False, True])
def test_an_answer_without_a_thought_is_content_whatever_parser_was_named(
    reasoning: str, truncated: bool
) -> None:
    for pieces in (["Hi there."], list("Hi there.")):
        events = read(reader_of(None, reasoning, may_think=True), pieces, truncated=truncated)
        assert fold(events) == (("text", "Hi there."),)
        assert all(not isinstance(event, PartStarted) or event.kind == "text" for event in events)


@pytest.mark.parametrize("reasoning", ["deepseek_r1", "qwen3_moe"])
def test_a_call_before_any_end_of_reasoning_leaves_the_words_before_it_content(reasoning: str) -> None:
    reader = reader_of("hermes", reasoning, tools=TOOLS)
    assert fold(read(reader, list("Let me see. " + CALL)))[0] == ("text", "Let me see.")


@given(st.integers(0, 24))
def test_an_end_of_reasoning_alone_splits_the_answer(cut: int) -> None:
    text = "Hm.\n</think>\n\nHi.</think>"
    for reasoning in ("qwen3", "glm4", "deepseek_r1"):
        reader = reader_of(None, reasoning, may_think=True)
        found = fold(read(reader, [text[:cut], text[cut:]]))
        assert found == (("reasoning", "Hm."), ("text", "Hi.</think>"))
        assert reader.reasoned


def test_a_stream_that_was_split_late_keeps_what_it_sent_apart_from_what_follows() -> None:
    events = read(reader_of(None, "qwen3", may_think=True), ["Hm.\n", "</think>\n\nHi."])
    assert "".join(event.text for event in events if isinstance(event, PartDelta)) == "Hm.\n\n\nHi."


def test_where_the_template_ended_reasoning_its_marker_is_text() -> None:
    text = "It is `</think>`."
    assert parts(text, None, "qwen3") == (("text", text),)


def test_an_answer_cut_inside_reasoning_is_reasoning() -> None:
    reader = reader_of(None, "qwen3")
    assert fold(read(reader, ["<think>Hm, "], truncated=True)) == (("reasoning", "Hm, "),)
    assert reader.thinking


def test_thinking_follows_the_markers() -> None:
    reader = reader_of("hermes", "qwen3", tools=TOOLS)
    states = []
    for piece in ("Hi\n", "<think>", "a", "</think>", "b"):
        reader.feed(piece)
        states.append(reader.thinking)
    assert states == [False, True, True, False, False]


def test_a_marker_in_the_middle_of_a_line_is_a_quotation() -> None:
    text = "Models think in <think> and </think> tags.\n- so `<think>` begins it"
    assert parts(text, None, "qwen3") == (("text", text),)


def read_tokens(reader: OutputReader, pieces: list[str | tuple[str]]) -> tuple[tuple[str, ...], ...]:
    """Pieces in a tuple are added tokens of the vocabulary."""
    events, position = [], 0
    for piece in pieces:
        text = piece if isinstance(piece, str) else piece[0]
        if not isinstance(piece, str):
            reader.added_token(position)
        position += len(text)
        events += reader.feed(text)
    return fold(events + reader.finish())


THINK = frozenset(("<think>", "</think>"))


def test_where_the_vocabulary_has_tokens_for_markers_only_those_are_markers() -> None:
    reader = reader_of(None, "qwen3", markup=Markup(tokens=THINK))
    assert read_tokens(reader, [("<think>",), "It ends at </think>", ".", ("</think>",), "<think>", "!"]) == (
        ("reasoning", "It ends at </think>."),
        ("text", "<think>!"),
    )


def test_an_end_that_is_spelt_out_on_a_line_of_its_own_ends_reasoning_all_the_same() -> None:
    reader = reader_of(None, "qwen3", markup=Markup(tokens=THINK), thinking=True)
    assert read_tokens(reader, ["Hm.\n</think>\n\nHi."]) == (("reasoning", "Hm."), ("text", "Hi."))


MARKERS = sorted({
    marker
    for name in sorted(reasoning_formats())
    for marker in reasoning_format(name).markers
} | {marker for name in sorted(tool_formats()) for marker in tool_format(name).markers})  # fmt: skip
QUOTING = st.lists(st.sampled_from([*MARKERS, "x", " ", "\n", "a b", '{"', "é"]), min_size=1, max_size=8).map(
    "".join
)


@pytest.mark.parametrize("reasoning", [name for name, _ in REASONING])
@given(text=QUOTING, cuts=st.data())
def test_under_a_grammar_an_answer_may_hold_any_marker(
    reasoning: str, text: str, cuts: st.DataObject
) -> None:
    family = reasoning_format(reasoning)
    text = text.strip() or "x"  # white space at its ends is told from that around markers by nothing
    thought = (
        "" if family.channels else f"Hm.{family.end}" if family.implicit else f"{family.start}Hm.{family.end}"
    )
    before = "".join(family.before_answer)
    held = [mark for mark in (family.start, family.end, *family.dropped) if mark in thought + before]
    markup = Markup(tokens=frozenset(held), grammar="answer")
    reader = reader_of(None, reasoning, markup=markup)
    for mark in held:
        if (at := (thought + before).find(mark)) >= 0:
            reader.added_token(at)
    wire = thought + before + text
    cut = cuts.draw(st.integers(0, len(wire)))
    assert fold(read(reader, [wire[:cut], wire[cut:]]))[-1] == ("text", text)


@given(text=QUOTING)
def test_without_tokens_for_its_markers_no_answer_of_a_grammar_is_reasoning(text: str) -> None:
    reader = reader_of(None, "qwen3", markup=Markup(grammar="answer"))
    assert fold(read(reader, [text])) == (("text", text),)


def test_tools_are_called_at_the_beginning_of_a_constrained_answer_or_not_at_all() -> None:
    quoted = f'{{"say": "{CALL}"}}'
    called = reader_of("hermes", tools=TOOLS, markup=Markup(grammar="answer"))
    said = reader_of("hermes", tools=TOOLS, markup=Markup(grammar="answer"))
    assert fold(read(called, ["\n" + CALL])) == (WEATHER,)
    assert fold(read(said, [quoted])) == (("text", quoted),)


def test_a_tool_called_inside_reasoning_is_a_call_and_reasoning_goes_on() -> None:
    assert parts(f"<think>I need {CALL} so.</think>Hi.") == (
        ("reasoning", "I need"),
        WEATHER,
        ("reasoning", "so."),
        ("text", "Hi."),
    )


def test_a_handoff_ends_reasoning() -> None:
    assert parts(f"<think>I need {CALL} Hi.", "hermes", "mixed_think_tool_handoff") == (
        ("reasoning", "I need"),
        WEATHER,
        ("text", "Hi."),
    )


def test_markup_talked_about_in_reasoning_stays_reasoning() -> None:
    assert parts("<think>Use <tool_call> now.</think>Hi.") == (
        ("reasoning", "Use <tool_call> now."),
        ("text", "Hi."),
    )


def test_a_stray_end_of_reasoning_at_the_start_is_dropped_and_later_is_text() -> None:
    assert parts("</think>\nHi </think> you") == (("text", "Hi </think> you"),)


def test_an_end_of_reasoning_that_is_a_token_is_never_text() -> None:
    reader = reader_of(None, "qwen3", markup=Markup(tokens=frozenset({"</think>"})))
    reader.added_token(3)
    assert fold(read(reader, ["Hi </think>you, `</think>`"])) == (("text", "Hi"), ("text", "you, `</think>`"))


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "glm4"])
@pytest.mark.parametrize("between", ["", "\n", "</think>\n\n"])
def test_an_end_of_reasoning_that_is_written_again_before_the_answer_is_markup(
    reasoning: str, between: str
) -> None:
    said = f"<think>Hm.</think>{between}</think>Hi."
    assert parts(said, reasoning=reasoning) == (("reasoning", "Hm."), ("text", "Hi."))


def test_empty_reasoning_is_no_part() -> None:
    assert parts("<think>\n\n</think>\n\nHi.") == (("text", "Hi."),)


def test_custom_markers_replace_the_formats_own() -> None:
    custom = replace(reasoning_format("qwen3"), start="<thought>", end="</thought>")
    reader = OutputReader(0, Formats(reasoning=custom))
    assert fold(read(reader, ["<thought>Hm.</thought>Hi <think>"])) == (
        ("reasoning", "Hm."),
        ("text", "Hi <think>"),
    )


def test_a_prompt_that_ends_with_the_start_is_open() -> None:
    think = reasoning_format("qwen3")
    assert think.open_in("<|im_start|>assistant\n<think>\n")
    assert not think.open_in("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not think.open_in("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n")
    assert reasoning_format("kimi_k3").open_in('<|open|>message role="assistant"<|sep|><|open|>think<|sep|>')


# Tokens


@settings(deadline=None)
@given(st.data())
def test_tokens_surface_with_their_text(data: st.DataObject) -> None:
    text = f"<think>Hm, é.</think> Well… {CALL} Bye  "
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reader = reader_of("hermes", "qwen3", tools=TOOLS)
    events = []
    for number, piece in enumerate(pieces):
        reader.tokens.push(piece, (Token(number, piece.encode(), -0.5),))
        events += reader.feed(piece, number + 1)
    events += reader.finish()
    seen: list[int] = []
    for part in collect(events).choices[0].parts:
        raw = b"".join(token.raw for token in part.tokens).decode()
        seen += [token.id for token in part.tokens]
        if part.kind != "tool_call" and len(pieces) == len(text):
            assert part.text == raw
    assert seen == sorted(set(seen))


def test_a_held_back_token_keeps_its_place_and_a_markers_tokens_do_not_surface() -> None:
    reader = reader_of("hermes", "qwen3", tools=TOOLS)
    words = ["<think>", "Hm", "</", "think", ">", "Hi ", "<", "b", ">"]
    events = []
    for number, word in enumerate(words):
        reader.tokens.push(word, (Token(number, word.encode(), -1.0),))
        events += reader.feed(word, number + 1)
    events += reader.finish()
    reasoning, answer = collect(events).choices[0].parts
    assert [token.id for token in reasoning.tokens] == [1]
    assert [token.id for token in answer.tokens] == [5, 6, 7, 8]
    assert answer.text == "Hi <b>"


def test_tokens_of_half_characters_come_with_the_whole_one() -> None:
    reader = reader_of(None)
    reader.tokens.push("", (Token(1, b"\xc3", -1.0),))
    assert reader.feed("", 1) == []
    reader.tokens.push("é", (Token(2, b"\xa9", -1.0),))
    (_, delta) = reader.feed("é", 2)
    assert isinstance(delta, PartDelta)
    assert [token.id for token in delta.tokens] == [1, 2]
    assert delta.completed == 2


def test_without_formats_everything_is_text_to_the_letter() -> None:
    text = f" \n<think>{CALL}  \n"
    assert fold(read(reader_of(None), list(text))) == (("text", text),)


# Stop strings


LETTERS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


def shown_of(stops: tuple[str, ...], pieces: list[str], *, include: bool = False) -> tuple[str, str | None]:
    finder, shown = StopFinder(stops, include=include), ""
    for piece in pieces:
        shown += finder.feed(piece)
        if finder.found is not None:
            return shown, finder.found
    return shown + finder.finish(), None


def cut_in(text: str, data: st.DataObject) -> list[str]:
    borders = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]


@given(text=LETTERS, stops=STOPS, include=st.booleans(), data=st.data())
def test_what_is_shown_does_not_depend_on_the_cut(text, stops, include, data):
    whole = shown_of(stops, [text], include=include)
    assert shown_of(stops, cut_in(text, data), include=include) == whole
    assert shown_of(stops, list(text), include=include) == whole


@given(text=LETTERS, stops=STOPS, data=st.data())
def test_the_text_before_the_first_complete_stop_string_is_shown_and_no_more(text, stops, data):
    ends = [(text.index(stop) + len(stop), text.index(stop), stop) for stop in stops if stop in text]
    shown, found = shown_of(stops, cut_in(text, data))
    if ends:
        _, begin, stop = min(ends)
        assert (shown, found) == (text[:begin], stop)
    else:
        assert (shown, found) == (text, None)


def test_held_back_text_is_released_as_soon_as_it_can_be():
    finder = StopFinder(("stop",))
    assert [finder.feed(piece) for piece in ("a st", "o", "ry")] == ["a ", "", "story"]


# Time

HOSTILE = [
    "<tool_call>",
    '<tool_call>{"a":"',
    "<tool_call><function=f><parameter=k>",
    "[",
    '{"name": "get_weather", "arguments": {"a": [',
    '<tool_call>{"name": "f", "arguments": {"a": "\\',
    "<|tool_call>call:f{a:[",
    "<|tool_call_start|>[f(a=[",
    "]<]minimax[>[",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "<|channel|>commentary to=functions.f<|message|>",
    "<",
    " \n",
    "```tool_code\nget_weather a ",
]


@pytest.mark.parametrize("name", sorted({tool_format(name).name for name in sorted(tool_formats())}))
def test_hostile_repetition_takes_linear_time(name: str) -> None:
    start = time.process_time()
    for unit in HOSTILE:
        text = unit * (4_000 // len(unit))
        for size in (len(text), 7):
            reader = reader_of(name, "qwen3", tools=TOOLS)
            read(reader, [text[at : at + size] for at in range(0, len(text), size)])
    assert time.process_time() - start < 0.5
