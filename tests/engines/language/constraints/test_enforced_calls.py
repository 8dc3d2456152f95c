"""Turns as the families' own templates write them, token by token through the decoder of a row: the grammar that is
enforced lets them pass, and what is read of them is what the template was given."""

import functools
import json
import re
from typing import Any

import numpy as np
import pytest

from pippin.core.completion import CompletedChoice, collect
from pippin.core.conversation import Message, Part, Reasoning, Text, ToolCall, ToolChoice
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Thinking
from pippin.core.tasks import Generate
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.output.formats import reasoning_format, tool_format
from tests.engines.language.text.small_tokenizer import byte_level
from tests.output.families import BY_NAME, FAMILIES, Family, renderer_of
from tests.output.grammar_walks import special_tokens
from tests.output.test_templates import calls_of
from tests.output.wire import TOOLS, WEATHER

ASKED = Message("user", (Text("Q?"),))
SIMPLE = ToolCall(id="abcdefgh0", name=WEATHER.name, arguments='{"city": "Oslo"}')
SPECIAL = re.compile(
    r"<[|｜][^<>\s|｜']+[|｜]?>|<[^<>\s|']+\|>|</s>|<sep>|<end_of_turn>|</assistant>|<seed:eos>|\[e~\["
)
OTHER_GRAMMARS = ("auto", "atem")  # formats that enforce JSON tags, and calls without the headers around them
CALLING = [
    family
    for family in (*FAMILIES, *BY_NAME)
    if family.tool and family.tool not in OTHER_GRAMMARS and family.writes != "nothing"
]
by_file = pytest.mark.parametrize("family", CALLING, ids=lambda family: f"{family.file}-{family.tool}")


def special_of(family: Family) -> tuple[str, ...]:
    """The special tokens that the family's tokenizer is likely to have."""
    known = [tool_format(family.tool)] if family.tool else []
    markers = [marker for found in known for marker in special_tokens(found.markers)]
    if family.reasoning:
        markers += special_tokens(reasoning_format(family.reasoning).markers)
    there = [marker for marker in markers if marker in family.source]
    return tuple(dict.fromkeys(["<s>", "</s>", *there, *SPECIAL.findall(family.source)]))


@functools.cache
def prepared_for(family: Family) -> LanguagePreparer:
    tokenizer = byte_level(special=special_of(family))
    tokenizer.chat_templates = {"default": family.source}
    tokenizer.special_names = {"bos_token": "<s>", "eos_token": "</s>"}
    info = ModelInfo(id="small", kind="language", context_window=8192)
    options = {"tool_call_parser": family.tool, "reasoning_parser": family.reasoning}
    spec = WorkerSpec(info=info, options={name: value for name, value in options.items() if value})
    return LanguagePreparer(spec, tokenizer)


def turn_of(family: Family, parts: list[Part]) -> str:
    """What the model writes after the prompt."""
    renderer = renderer_of(family)
    prompt = renderer.render([ASKED], TOOLS, prompt=True)
    whole = renderer.render([ASKED, Message("assistant", tuple(parts))], TOOLS)
    if whole.startswith(prompt):
        return whole[len(prompt) :].lstrip("\n")
    return renderer.answer(parts, TOOLS).lstrip("\n")


def job_of(prepared: LanguagePreparer, **fields: Any) -> LanguageJob:
    request = GenerationRequest(model="small", messages=(ASKED,), thinking=Thinking(enabled=True), **fields)
    job = prepared.prepare("r", Generate(request))
    assert isinstance(job, LanguageJob)
    return job


def played(job: LanguageJob, prepared: LanguagePreparer, wire: str, calls: int) -> CompletedChoice:
    """The turn's tokens through the decoder; each must be allowed until all calls are made, and an end after them."""
    decoder, events = SequenceDecoder(job, 0, prepared.tokenizer), []
    for token in prepared.tokenizer.encode(wire):
        row = np.zeros(-(-prepared.tokenizer.size // 32), np.int32)
        if decoder.needs_mask:
            decoder.fill_mask(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            if not bits[token]:
                text = "".join(part.text for part in collect(events).choices[0].parts) if events else ""
                left = f"{prepared.tokenizer.decode([token])!r} is not allowed in {wire!r} after {text!r}"
                assert decoder.reader.calls == calls, left
                assert any(bits[end] for end in job.eos), left
                break
        events += decoder.accept(token)
        if decoder.finished is not None:
            break
    events += decoder.close("stop")
    return collect(events).choices[0]


def calls_in(choice: CompletedChoice) -> list[tuple[str | None, Any]]:
    return [(part.name, json.loads(part.text)) for part in choice.parts if part.kind == "tool_call"]


CHOICES = {
    "strict": (ToolChoice(), True),
    "required": (ToolChoice("required"), False),
    "named": (ToolChoice("required", (WEATHER.name,)), False),
}


ONE_CALL = ("step3p5",)  # the end of a call is a stop of this format
OTHERWISE = {
    "deepseekv3": "this copy of a template puts blanks between its markers",
    "deepseekv31": "this copy of a template puts blanks between its markers",
    "granite": "it breaks JSON into lines, in which small models lose themselves",
    "LFM2.5-8B-A1B": "it writes Python's quotes without escaping what is in them",
    "MiniMax-M1": "it has a line for each call, where those of its format have an array",
}


def cases() -> list[Any]:
    """The first template of each format with all choices; the others are long (what they write is read, and admitted by
    the grammar, in `tests/output/test_templates.py`)."""
    formats: set[str | None] = set()
    found = []
    for family in CALLING:
        for choice in CHOICES:
            marks = pytest.mark.long if family.tool in formats else ()
            found.append(
                pytest.param(family, choice, marks=marks, id=f"{family.file}-{family.tool}-{choice}")
            )
        formats.add(family.tool)
    return found


@pytest.mark.parametrize(("family", "choice"), cases())
def test_a_templates_own_turn_passes_the_grammar_that_is_enforced(family: Family, choice: str) -> None:
    if family.file in OTHERWISE:
        pytest.skip(OTHERWISE[family.file])
    chosen, strict = CHOICES[choice]
    tools = tuple(
        type(tool)(name=tool.name, parameters=tool.parameters, strict=strict or None) for tool in TOOLS
    )
    calls = [SIMPLE] if choice == "named" or not family.admitted else calls_of(family)
    beside: list[Part] = [Reasoning("Hm.")] if family.reasoning and family.thoughts else []
    wire = turn_of(family, [*beside, *calls])
    if family.tool in ONE_CALL:
        calls = calls[:1]
    prepared = prepared_for(family)
    job = job_of(prepared, tools=tools, tool_choice=chosen)
    assert job.grammar is not None
    answer = played(job, prepared, wire, len(calls))
    assert calls_in(answer) == [(call.name, json.loads(call.arguments)) for call in calls]
    assert answer.text("text").strip() == ""
    assert answer.text("reasoning").strip() in ("", "Hm.")


ENVELOPED = [family for family in FAMILIES if family.reasoning and family.thoughts]


@pytest.mark.parametrize("family", ENVELOPED, ids=lambda family: family.file)
def test_nothing_of_an_envelope_leaks_into_a_plain_answer(family: Family) -> None:
    prepared = prepared_for(family)
    wire = turn_of(family, [Reasoning("Hm."), Text("Let me see.")])
    if "Hm." not in wire:
        pytest.skip("this template writes no reasoning")
    answer = played(job_of(prepared), prepared, wire, 0)
    assert answer.text("text").strip().startswith("Let me see.")
    assert not re.search(r"assistant|response|message|final", answer.text("text")), wire
