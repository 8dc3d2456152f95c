"""Answers that repeat themselves are found, and sound ones are not."""

import time

import pytest

from pippin.core.conversation import Message, Text, ToolCall, ToolResult
from pippin.core.events import Event, PartDelta, PartEnded, PartStarted
from pippin.core.requests import GenerationRequest
from pippin.engines.scripted.tokenizer import decode, encode
from pippin.output.checking import LOOK_EVERY, Loops, repeated_calls
from tests.output.loops.corpus import LONG, NOUNS, loops, sound


def asked(text: str = "Go on.", **fields: object) -> GenerationRequest:
    request = {"loop_guard": "stop", **fields}
    return GenerationRequest(model="m", messages=(Message("user", (Text(text),)),), **request)  # type: ignore[arg-type]


def end_of(text: str, request: GenerationRequest) -> int | None:
    """After how many tokens an answer is ended; None if it is not."""
    watch, tokens = Loops(request), list(encode(text))
    for end in range(LOOK_EVERY, len(tokens) + 1, LOOK_EVERY):
        watch.look(tokens[:end], decode)
        if watch.over:
            return end
    return None


def test_loops_end_within_128_tokens_of_their_third_repetition() -> None:
    late = []
    for before, period in loops():
        third = len(encode(before)) + 3 * len(encode(period))
        text = before + period * (3 + LONG // len(encode(period)))
        end = end_of(text, asked())
        if end is None or end > third + 128:
            late.append((period, end, third))
    assert len(late) <= 10, late


def test_no_sound_answer_is_ended() -> None:
    cut = [(kind, text) for kind, text in sound() if end_of(text, asked()) is not None]
    assert cut == []


@pytest.mark.parametrize(
    ("question", "period", "count"),
    [
        ("Repeat this word 100 times: strawberry", "strawberry ", 100),
        ("Write 'I must not talk in class' a hundred times.", "I must not talk in class.\n", 100),
        ("Make 80 equal rows of test data.", "Erika Mustermann,Heidestrasse,Berlin,Germany\n", 80),
        ("A list of 1000 zeros", "0, ", 1000),
        ("Make fifty equal rows of test data.", "Erika Mustermann,Heidestrasse,Berlin,Germany\n", 50),
        (
            "1,000 equal rows please, the first 100 now.",
            "Erika Mustermann,Heidestrasse,Berlin,Germany\n",
            100,
        ),
        ("100行のテストデータ", "Erika Mustermann,Heidestrasse,Berlin,Germany\n", 100),
    ],
)
def test_what_the_user_asked_for_is_given(question: str, period: str, count: int) -> None:
    assert end_of(period * count, asked(question)) is None
    assert end_of(period * count * 60, asked(question)) is not None


@pytest.mark.parametrize(
    "question",
    [
        "What happened in 2024?",
        "In 1999 who won?",
        "What listens on port 8080?",
        "RFC 9110: explain",
        "Why 3.1415?",
    ],
)
def test_years_ports_and_codes_in_a_question_ask_for_no_repetition(question: str) -> None:
    text = "The river carries the stone and the window. " * 60
    assert end_of(text, asked(question)) is not None


@pytest.mark.parametrize(
    ("period", "repetitions"),
    [
        ("The river carries the stone.\nA window opens because the garden waits!\n", 20),
        ("今日は天気がいいから散歩に行きましょう。", 20),
        ("오늘은 날씨가 좋으니 산책을 갑시다. ", 20),
        ("    } else if (value == other) {\n        return result;\n", 20),
        (" ".join(f"{noun} {other}" for noun in NOUNS[:20] for other in NOUNS[:20]) + "\n", 4),  # a long one
    ],
)
def test_blocks_of_any_length_and_script_are_loops(period: str, repetitions: int) -> None:
    assert end_of(period * repetitions, asked()) is not None


@pytest.mark.parametrize(
    "period",
    ["aGVsbG8gd29ybGQgb2YgYnl0ZXMgaGVsbG8gd29ybGQ5\n", "    {0x00, 0xff, 0x1f, 0x2e},\n", "00 ff 1f 2e\n"],
)
def test_rows_of_encoded_data_may_be_equal(period: str) -> None:
    assert end_of(period * 20, asked()) is None


def test_nothing_is_ended_where_the_client_forces_a_length_or_turns_the_guard_off() -> None:
    text = "The river carries the stone and the window. " * 200
    assert end_of(text, asked()) is not None
    assert not Loops(asked(ignore_eos=True)).watches
    assert not Loops(asked(loop_guard="off")).watches
    assert not Loops(GenerationRequest(model="m", prompt="x")).watches
    assert end_of(text, asked(loop_guard="warn")) is None


def test_a_warning_says_what_was_found() -> None:
    watch = Loops(asked(loop_guard="warn"))
    watch.look(list(encode("The river carries the stone and the window. " * 64))[:-1], decode)
    assert "again and again" in watch.warnings[0]
    assert not watch.over


def test_a_counter_makes_no_loop() -> None:
    text = "".join(f"Step {number}: the river carries the stone to the window.\n" for number in range(300))
    assert end_of(text, asked()) is None


def test_the_same_call_in_one_answer_ends_it_and_others_do_not() -> None:
    def call(index: int, arguments: str) -> list[Event]:
        started = PartStarted(0, index, "tool_call", f"call_{index}", "look")
        return [
            started,
            PartDelta(0, index, arguments[:3]),
            PartDelta(0, index, arguments[3:]),
            PartEnded(0, index),
        ]

    watch = Loops(asked())
    for index in range(9):
        watch.read(call(index, f'{{"at": {index}}}'))
    assert not watch.over
    ended = [index for index in range(9) if watch.read(call(index, '{"at": 1}')) or watch.over]
    assert ended[0] == 2  # it was called once before
    assert "`look`" in watch.warnings[0]


def test_calls_are_the_same_whatever_their_whitespace_and_the_order_of_their_names() -> None:
    watch = Loops(asked())
    for arguments in ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', '{ "a":1,\n "b":[ 2 ]}', '{"a":1,"b":[2]}'):
        assert not watch.over
        watch.read([PartStarted(0, 0, "tool_call", "c", "look"), PartDelta(0, 0, arguments), PartEnded(0, 0)])
    assert watch.over


def test_calls_that_a_conversation_repeats_in_vain_are_told() -> None:
    def turns(results: list[str], *names: str) -> GenerationRequest:
        messages = [Message("user", (Text("Go."),))]
        for number, result in enumerate(results):
            name = names[number % len(names)] if names else "look"
            arguments = '{"at": 1}' if number % 2 else '{"at":1}'
            messages.append(Message("assistant", (ToolCall(f"c{number}", name, arguments),)))
            messages.append(Message("tool", (ToolResult(f"c{number}", (Text(result),)),)))
        return GenerationRequest(model="m", messages=tuple(messages), loop_guard="stop")

    assert "3 calls of `look`" in repeated_calls(turns(["none", "no", "no", "no"]))[0]
    assert repeated_calls(turns(["no", "no"])) == ()
    assert repeated_calls(turns(["1", "2", "3", "4"])) == ()
    assert "3 calls of `read`" in repeated_calls(turns(["no"] * 6, "look", "read"))[0]
    assert repeated_calls(turns(["no"] * 4, "look", "read")) == ()


def test_looking_costs_next_to_nothing() -> None:
    tokens = [hash((number, "x")) % 50_000 for number in range(4096)]
    watch, began = Loops(asked()), time.process_time()
    for end in range(LOOK_EVERY, len(tokens), LOOK_EVERY):
        watch.look(tokens[:end], decode)
    assert (time.process_time() - began) / len(tokens) < 5e-6  # seconds for each token
