"""One choice, token by token: what is shown, when it ends, and what may come next."""

from copy import copy
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from pippin.core.completion import CompletedChoice, Completion
from pippin.core.conversation import Tool, ToolChoice
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, PartDelta, PartEnded
from pippin.core.parameters import OfEveryAnswer
from pippin.core.requests import Choice, GenerationRequest, Grammar, JsonSchema, Sampling
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.output.formats import reasoning_format, tool_format
from tests.engines.language.text.small_tokenizer import byte_level

TOKENIZER = byte_level()
END = TOKENIZER.single("<|im_end|>")
THINK = reasoning_format("think")


def job(request: GenerationRequest | None = None, **more: Any) -> LanguageJob:
    request = request or GenerationRequest(model="m", prompt="x", sampling=Sampling())
    values = {
        "id": "r",
        "request": request,
        "accepted": Accepted(1),
        "prompt": (1,),
        "max_tokens": 1000,
        "eos": TOKENIZER.eos,
        "stops": request.stop,
    }
    return LanguageJob(**{**values, **more})


def asking(**fields: Any) -> GenerationRequest:
    return GenerationRequest(model="m", prompt="x", **fields)


def run(decoder: SequenceDecoder, text: str, *, logprobs: bool = False) -> CompletedChoice:
    """Feed the tokens of a text until the row is finished."""
    completion = Completion()
    events: list[Event] = []
    for token in TOKENIZER.encode(text):
        events += decoder.accept(token, -0.5 if logprobs else None)
        if decoder.finished:
            break
    events += decoder.close(decoder.finished or "cancelled")
    for event in events:
        completion.add(event)
    return completion.choices[0] if completion.choices else CompletedChoice()


def allowed(decoder: SequenceDecoder, tokenizer: Tokenizer = TOKENIZER) -> set[int]:
    row = np.zeros(-(-tokenizer.size // 32), np.int32)
    decoder.fill_mask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def test_an_end_token_stops_and_does_not_show():
    decoder = SequenceDecoder(job(), 0, TOKENIZER)
    assert run(decoder, "Hello world<|im_end|>never").text("text") == "Hello world"
    assert decoder.finished == "stop"
    assert decoder.completion_tokens == len(TOKENIZER.encode("Hello world")) + 1


def test_special_tokens_in_an_answer_do_not_show():
    assert run(SequenceDecoder(job(), 0, TOKENIZER), "a<|endoftext|>b<|im_end|>").text("text") == "ab"


def test_the_limit_of_tokens_ends_with_length():
    decoder = SequenceDecoder(job(max_tokens=2), 0, TOKENIZER)
    shown = run(decoder, "one two three").text("text")
    assert decoder.finished == "length"
    assert decoder.completion_tokens == 2
    assert "one two three".startswith(shown)
    assert SequenceDecoder(job(max_tokens=0), 0, TOKENIZER).finished == "length"


@pytest.mark.parametrize(("include", "shown"), [(False, "say "), (True, "say stop here")])
def test_a_stop_string_across_token_borders_is_cut(include, shown):
    decoder = SequenceDecoder(job(asking(stop=("stop here",), include_stop=include)), 0, TOKENIZER)
    assert run(decoder, "say stop here now").text("text") == shown
    assert decoder.finished == "stop"
    assert decoder.stop_sequence == "stop here"


def test_a_stop_string_of_the_format_is_not_reported():
    decoder = SequenceDecoder(job(stops=("hidden",)), 0, TOKENIZER)
    assert run(decoder, "say hidden now").text("text") == "say "
    assert decoder.stop_sequence is None


def test_text_held_back_for_a_stop_string_is_released_at_the_end():
    assert (
        run(SequenceDecoder(job(asking(stop=("dogma",))), 0, TOKENIZER), "a dog<|im_end|>").text("text")
        == "a dog"
    )


def test_no_end_before_the_least_number_of_tokens():
    decoder = SequenceDecoder(job(asking(min_tokens=3)), 0, TOKENIZER)
    assert decoder.needs_mask
    assert END not in allowed(decoder)
    for token in TOKENIZER.encode("abc def ghi")[:3]:
        decoder.accept(token)
    assert not decoder.needs_mask


def test_no_answer_begins_with_what_the_checkpoint_leaves_out_there():
    [first, other, *_] = TOKENIZER.encode("abc def ghi")
    asking_so = copy(TOKENIZER)
    asking_so.asked = OfEveryAnswer(begin_suppress_tokens=(first, END, -1))
    decoder = SequenceDecoder(job(), 0, asking_so)
    assert decoder.needs_mask
    assert {first, END} & allowed(decoder) == set()
    assert {other, TOKENIZER.size - 1} < allowed(decoder)
    assert decoder.allowed([first]) == 0
    decoder.accept(other)
    assert not decoder.needs_mask


def test_reasoning_is_counted_and_stop_strings_do_not_cut_it():
    decoder = SequenceDecoder(
        job(asking(stop=("world",)), reasoning_format=THINK, thinking_open=True), 0, TOKENIZER
    )
    choice = run(decoder, "Hello world</think>What world is")
    assert choice.text("reasoning") == "Hello world"
    assert choice.text("text") == "What "
    assert decoder.reasoning_tokens == len(TOKENIZER.encode("Hello world</think>"))


@pytest.mark.parametrize("stop", ['"b"', "x", "\n</tool_call>", '"arguments"'])
def test_a_stop_string_inside_a_call_leaves_nothing_of_the_call(stop):
    request = asking(stop=(stop,), tools=(TOOL,))
    form = tool_format("json_tools")
    decoder = SequenceDecoder(job(request, tools=(TOOL,), tool_format=form), 0, TOKENIZER)
    call = f'{{"name": "{TOOL.name}", "arguments": {{"a": 1, "b": "x"}}}}'
    choice = run(decoder, f"So: <tool_call>\n{call}\n</tool_call>")
    # The call itself is complete before its end marker.
    kinds = ["text", "tool_call"] if stop.startswith("\n") else ["text"]
    assert [part.kind for part in choice.parts] == kinds
    said = choice.text("text").rstrip()
    assert (said, decoder.finished, decoder.stop_sequence) == ("So:", "stop", stop)


def test_a_stop_string_behind_what_looks_like_a_marker_leaves_it():
    request = asking(stop=("!",), tools=(TOOL,))
    decoder = SequenceDecoder(
        job(request, tools=(TOOL,), tool_format=tool_format("json_tools")), 0, TOKENIZER
    )
    assert run(decoder, "if a <!").text("text") == "if a <"


def test_a_used_up_budget_forces_the_end_of_reasoning():
    end = tuple(TOKENIZER.encode("</think>"))
    decoder = SequenceDecoder(
        job(reasoning_format=THINK, thinking_open=True, thinking_budget=3, thinking_end=end), 0, TOKENIZER
    )
    for token in TOKENIZER.encode("one two three four")[:3]:
        assert decoder.forced == ()
        decoder.accept(token)
    assert decoder.forced == end
    assert decoder.needs_mask
    assert allowed(decoder) == {end[0]}
    for token in end:
        decoder.accept(token)
    assert decoder.forced == ()
    assert not decoder.needs_mask


def test_a_token_that_ends_reasoning_and_turns_ends_the_reasoning_first():
    end = TOKENIZER.single("<|im_end|>")
    reasoning = replace(THINK, end="<|im_end|>")
    decoder = SequenceDecoder(
        job(reasoning_format=reasoning, thinking_open=True, thinking_end=(end,)), 0, TOKENIZER
    )
    choice = run(decoder, "Hm.<|im_end|>Four.<|im_end|>")
    assert (choice.text("reasoning"), choice.text("text")) == ("Hm.", "Four.")
    assert decoder.finished == "stop"


def test_a_budget_of_nothing_forces_the_end_at_once():
    end = tuple(TOKENIZER.encode("</think>"))
    decoder = SequenceDecoder(
        job(reasoning_format=THINK, thinking_open=True, thinking_budget=0, thinking_end=end), 0, TOKENIZER
    )
    assert decoder.forced == end


def constrained(wanted: Any, **more: Any) -> LanguageJob:
    return job(grammar=GrammarCompiler(TOKENIZER).compile(wanted), **more)


def test_a_grammar_masks_and_its_end_is_the_end():
    decoder = SequenceDecoder(constrained(Choice(("yes", "no"))), 0, TOKENIZER)
    assert decoder.needs_mask
    assert {bytes(TOKENIZER.raw(token)[:1]) for token in allowed(decoder)} == {b"y", b"n"}
    assert run(decoder, "yes").text("text") == "yes"
    assert decoder.finished == "stop"


def test_a_grammar_begins_after_the_reasoning():
    decoder = SequenceDecoder(
        constrained(Choice(("yes", "no")), reasoning_format=THINK, thinking_open=True), 0, TOKENIZER
    )
    everything = set(range(TOKENIZER.size))
    for token in TOKENIZER.encode("hm, quite free</think>"):
        # An end here would leave out the answer that the grammar describes.
        assert decoder.needs_mask
        assert everything - allowed(decoder) == set(TOKENIZER.eos)
        decoder.accept(token)
    assert decoder.needs_mask
    assert {bytes(TOKENIZER.raw(token)[:1]) for token in allowed(decoder)} == {b"y", b"n"}


def test_the_token_that_ends_reasoning_and_turns_may_end_the_reasoning_before_a_grammar():
    reasoning = replace(THINK, end="<|im_end|>")
    decoder = SequenceDecoder(
        constrained(
            Choice(("yes", "no")), reasoning_format=reasoning, thinking_open=True, thinking_end=(END,)
        ),
        0,
        TOKENIZER,
    )
    assert END in allowed(decoder)


def test_a_model_may_open_its_reasoning_by_itself_before_a_grammar():
    (start,) = TOKENIZER.encode("<think>")
    decoder = SequenceDecoder(
        constrained(Choice(("yes", "no")), reasoning_format=THINK, may_think=True, thinking_start=(start,)),
        0,
        TOKENIZER,
    )
    assert start in allowed(decoder)
    choice = run(decoder, "<think>well</think>no")
    assert (choice.text("reasoning"), choice.text("text")) == ("well", "no")
    answered = SequenceDecoder(
        constrained(Choice(("yes", "no")), reasoning_format=THINK, may_think=True, thinking_start=(start,)),
        0,
        TOKENIZER,
    )
    answered.accept(TOKENIZER.encode("y")[0])
    assert start not in allowed(answered)


def test_a_grammar_whose_only_way_is_the_end_beats_the_least_number_of_tokens():
    decoder = SequenceDecoder(constrained(Choice(("y", "yes")), request=asking(min_tokens=50)), 0, TOKENIZER)
    decoder.accept(TOKENIZER.encode("y")[0])
    assert END not in allowed(decoder)
    assert allowed(decoder)


def test_a_token_that_a_grammar_forbids_ends_the_request_with_an_error():
    decoder = SequenceDecoder(constrained(Choice(("yes",))), 0, TOKENIZER)
    with pytest.raises(ServerError):
        decoder.accept(TOKENIZER.encode("no")[0])


def test_the_end_where_a_grammar_cannot_go_on_is_an_error_and_no_answer():
    wanted = Grammar("lark", "start: /[ab]/ rest\nrest: rest")
    for form, field in ((wanted, "response_format"), (None, "tools")):
        decoder = SequenceDecoder(constrained(wanted, request=asking(output_format=form)), 0, TOKENIZER)
        decoder.accept(TOKENIZER.encode("a")[0])
        assert allowed(decoder) == {END}
        with pytest.raises(ServerError, match="admits nothing behind what was generated") as refused:
            decoder.accept(END)
        assert refused.value.report.param == field


def test_proposals_are_let_through_as_far_as_grammar_and_limits_go():
    tokens = TOKENIZER.encode("yes")
    assert SequenceDecoder(job(), 0, TOKENIZER).allowed([5, 6, 7]) == 3
    assert SequenceDecoder(job(max_tokens=2), 0, TOKENIZER).allowed([5, 6, 7]) == 2
    decoder = SequenceDecoder(constrained(Choice(("yes", "yesterday", "today"))), 0, TOKENIZER)
    assert decoder.allowed(tokens) == len(tokens)
    assert decoder.allowed(TOKENIZER.encode("no")) == 0
    assert decoder.allowed([*tokens[:1], TOKENIZER.size + 7]) == 1
    assert decoder.allowed(tokens) == len(tokens)
    assert (
        SequenceDecoder(constrained(Choice(("yes",))), 0, TOKENIZER).allowed(tokens) == 0
    )  # they are forced
    budgeted = job(reasoning_format=THINK, thinking_open=True, thinking_budget=2, thinking_end=(1,))
    assert SequenceDecoder(budgeted, 0, TOKENIZER).allowed([5, 6, 7]) == 2


def test_masks_ahead_are_those_of_each_place_and_leave_the_row_alone():
    wanted = JsonSchema({"enum": ["abcdef", "abcxyz"]})
    decoder, walker = (SequenceDecoder(constrained(wanted), 0, TOKENIZER) for _ in range(2))
    tokens = TOKENIZER.encode('"abc')
    rows = np.zeros((len(tokens) + 1, -(-TOKENIZER.size // 32)), np.int32)
    decoder.masks_ahead(tokens, rows)
    for row, token in zip(rows, [*tokens, None], strict=True):
        wanted_row = np.zeros_like(row)
        walker.fill_mask(wanted_row)
        assert (row == wanted_row).all()
        if token is not None:
            walker.accept(token)
    again = np.zeros_like(rows[0])
    decoder.fill_mask(again)
    assert (again == rows[0]).all()


TOOL = Tool("look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})


def test_a_tool_call_is_a_part_and_the_reason_to_end():
    request = asking(tools=(TOOL,), parallel_tool_calls=False)
    decoder = SequenceDecoder(
        job(request, tools=(TOOL,), tool_format=tool_format("json_tools")), 0, TOKENIZER
    )
    choice = run(decoder, 'Wait. <tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call> and on')
    assert decoder.finished == "tool_calls"
    assert [part.name for part in choice.parts if part.kind == "tool_call"] == ["look"]
    assert choice.text("tool_call").replace(" ", "") == '{"at":"it"}'


def test_calls_that_are_not_to_be_read_stay_text_markup_and_all():
    said = 'Wait. <tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call> and on'
    request = asking(tools=(TOOL,), read_calls=False, parallel_tool_calls=False)
    decoder = SequenceDecoder(
        job(request, tools=(TOOL,), tool_format=tool_format("json_tools")), 0, TOKENIZER
    )
    choice = run(decoder, said + "<|im_end|>")
    assert decoder.finished == "stop"
    assert choice.text("text") == said
    assert choice.text("tool_call") == ""


def test_a_required_call_is_the_only_thing_that_can_come():
    form, compiler = tool_format("json_tools"), GrammarCompiler(TOKENIZER)
    source = form.grammar((TOOL,), required=True, parallel=False, special=compiler.special_id)
    request = asking(tools=(TOOL,), tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    decoder = SequenceDecoder(
        job(request, tools=(TOOL,), tool_format=form, grammar=compiler.compile(None, source)), 0, TOKENIZER
    )
    assert allowed(decoder) == {TOKENIZER.single("<tool_call>")}
    choice = run(decoder, '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>')
    assert [part.name for part in choice.parts] == ["look"]


def test_logprobs_go_with_the_text_they_belong_to():
    decoder = SequenceDecoder(job(asking(logprobs=0, stop=("zzz",))), 0, TOKENIZER)
    choice = run(decoder, "naïve 🙂 dog<|im_end|>", logprobs=True)
    tokens = choice.tokens("text")
    assert b"".join(token.raw for token in tokens).decode() == "naïve 🙂 dog"
    assert all(token.logprob == -0.5 for token in tokens)


def test_only_tokens_that_begin_before_a_stop_string_are_told():
    hello, world = TOKENIZER.encode("Hello world")
    decoder = SequenceDecoder(job(asking(logprobs=0, stop=("o wor",))), 0, TOKENIZER)
    choice = run(decoder, "Hello world dog", logprobs=True)
    assert (choice.text("text"), [token.id for token in choice.tokens("text")]) == ("Hell", [hello])
    released = run(SequenceDecoder(job(asking(stop=("o wart",))), 0, TOKENIZER), "Hello world", logprobs=True)
    assert [token.id for token in released.tokens("text")] == [hello, world]


def test_why_a_sequence_ended_is_known_with_its_last_token():
    decoder = SequenceDecoder(
        job(asking(tools=(TOOL,)), tools=(TOOL,), tool_format=tool_format("json_tools")), 0, TOKENIZER
    )
    tokens = TOKENIZER.encode('<tool_call>{"name": "look", "arguments": {}}</tool_call><|im_end|>')
    events = [event for token in tokens for event in decoder.accept(token)]
    assert decoder.finished == "tool_calls"
    assert isinstance(events[-1], PartEnded)
    assert decoder.close("stop") == []


def test_closing_a_cancelled_sequence_ends_its_parts():
    decoder = SequenceDecoder(msgspec.structs.replace(job()), 0, TOKENIZER)
    decoder.accept(TOKENIZER.encode("Hello")[0])
    assert decoder.close("cancelled")


# Reasoning before a grammar, in families that mark it in ways of their own


def follow(decoder: SequenceDecoder, tokenizer: Tokenizer, text: str) -> list[Event]:
    """Feed a text whose every token must be allowed."""
    events: list[Event] = []
    for token in tokenizer.encode(text):
        row = np.zeros(-(-tokenizer.size // 32), np.int32)
        if decoder.needs_mask:
            decoder.fill_mask(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            assert bits[token], (text, tokenizer.raw(token))
        events += decoder.accept(token)
    return events


def preparing(
    tokenizer: Tokenizer, tool: str | None, reasoning: str, wanted: Any = None, **more: Any
) -> LanguageJob:
    """As a request would be prepared that requires a call of `look`, or an answer as `wanted`."""
    compiler, form = GrammarCompiler(tokenizer), tool_format(tool) if tool else None
    thinking = reasoning_format(reasoning)
    calls = (
        form.grammar((LOOK,), required=True, parallel=False, special=compiler.special_id) if form else None
    )
    return job(
        tool_format=form,
        tools=(LOOK,) if form else (),
        reasoning_format=thinking,
        grammar=compiler.compile(wanted, calls, reasoning=thinking),
        grammar_has_reasoning=thinking.in_grammar is not None,
        thinking_start=tuple(tokenizer.encode(thinking.start)),
        thinking_end=tuple(tokenizer.encode(thinking.end)),
        **more,
    )


LOOK = Tool("look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
HARMONY = byte_level(
    special=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
)
GEMMA = byte_level(special=("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'))
YES = Choice(("yes", "no"))


@pytest.mark.parametrize("blanks", ["", "\n\n", "\n"])
def test_blank_lines_between_reasoning_and_a_grammar_are_allowed_and_do_not_show(blanks):
    for wanted, answer in ((YES, "yes"), (JsonSchema({"type": "object", "maxProperties": 0}), "{}")):
        decoder = SequenceDecoder(
            preparing(TOKENIZER, None, "think", wanted, thinking_open=True), 0, TOKENIZER
        )
        events = follow(decoder, TOKENIZER, f"hm</think>{blanks}{answer}")
        shown = "".join(event.text for event in events if isinstance(event, PartDelta) and event.index == 1)
        assert shown == answer
        assert decoder.finished == "stop"
    decoder = SequenceDecoder(preparing(TOKENIZER, "json_tools", "think", thinking_open=True), 0, TOKENIZER)
    follow(decoder, TOKENIZER, f"hm</think>{blanks}<tool_call>\n{{")


def test_reasoning_may_begin_after_a_blank_line():
    decoder = SequenceDecoder(preparing(TOKENIZER, "glm47", "glm4", may_think=True), 0, TOKENIZER)
    follow(decoder, TOKENIZER, "\n<think>hm</think>\n<tool_call>look")


def test_a_marker_of_several_tokens_may_open_reasoning_before_a_grammar():
    decoder = SequenceDecoder(preparing(GEMMA, "gemma4", "gemma4", may_think=True), 0, GEMMA)
    follow(decoder, GEMMA, "<|channel>thought\nhm<channel|>")
    follow(decoder, GEMMA, '<|tool_call>call:look{at:<|"|>x<|"|>}<tool_call|>')
    assert decoder.finished == "tool_calls"


def test_a_marker_of_several_tokens_is_finished_once_begun():
    decoder = SequenceDecoder(preparing(GEMMA, "gemma4", "gemma4", may_think=True), 0, GEMMA)
    start = tuple(GEMMA.encode("<|channel>thought\n"))
    decoder.accept(start[0])
    assert decoder.forced == start[1:]


@pytest.mark.parametrize(
    "call",
    [
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>",
        " to=functions.look<|channel|>commentary json<|message|>",
    ],
)
@pytest.mark.parametrize(
    "thought", ["", "<|channel|>analysis<|message|>hm, quite free<|end|><|start|>assistant"]
)
def test_a_call_that_is_required_of_harmony_may_follow_its_analysis(thought, call):
    decoder = SequenceDecoder(preparing(HARMONY, "harmony", "harmony"), 0, HARMONY)
    follow(decoder, HARMONY, thought + call + '{"at": "x"}<|call|>')
    assert decoder.reader.calls == 1


def test_an_answer_of_harmony_in_a_form_stands_in_its_final_channel():
    decoder = SequenceDecoder(preparing(HARMONY, None, "harmony", YES), 0, HARMONY)
    follow(
        decoder,
        HARMONY,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>",
    )
    assert {bytes(HARMONY.raw(token)[:1]) for token in allowed(decoder, HARMONY)} == {b"y", b"n"}


def test_a_budget_ends_the_analysis_of_harmony_inside_a_grammar():
    decoder = SequenceDecoder(preparing(HARMONY, "harmony", "harmony", thinking_budget=2), 0, HARMONY)
    for token in HARMONY.encode("<|channel|>analysis<|message|>one two three four"):
        if decoder.forced:
            break
        decoder.accept(token)
    assert decoder.forced == tuple(HARMONY.encode("<|end|>"))
    follow(decoder, HARMONY, "<|end|><|start|>assistant<|channel|>commentary to=functions.look ")


def test_nothing_of_an_answer_cut_inside_reasoning_is_content():
    for text in ("hm, quite", "hm <tool_call>", "hm </thi"):
        choice = run(
            SequenceDecoder(job(reasoning_format=THINK, thinking_open=True, max_tokens=3), 0, TOKENIZER), text
        )
        assert choice.text("text") == ""


def test_a_stop_string_that_ends_in_the_answer_does_not_reach_back_into_the_reasoning():
    decoder = SequenceDecoder(
        job(asking(stop=("ab",)), reasoning_format=THINK, thinking_open=True), 0, TOKENIZER
    )
    choice = run(decoder, "a</think>b then ab")
    assert (choice.text("reasoning"), choice.text("text")) == ("a", "b then ")
    assert decoder.stop_sequence == "ab"
