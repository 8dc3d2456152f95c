"""Whatever a text holds, it is in the prompt as it was said, or its turn is refused."""

import json
import time

import pytest

from pippin.core.conversation import Message, Text, ToolCall, ToolResult
from pippin.core.requests import GenerationRequest
from pippin.engines.language.prompt.forms import Proof
from tests.engines.language.prompt.histories import ASKED, MORE, SAID, TOOLS, Conversation, call, result, says
from tests.engines.language.prompt.test_forms import NO_CONVERSATIONS
from tests.engines.language.prompt.test_preparer import chat, job_of, preparer, refusal, text_of
from tests.output.families import FAMILIES, Family
from tests.reports.test_histories import prepared

TEXTS = (
    "First line\n\n  second  line\twith a tab\n",
    '{"found": "R1", "list": [1, 2.50, null, true], "quoted": "a \\"b\\" \\n c"}',
    "He said \"x\" and 'y' \\ back\\slash",
    "Grüße 北京 🙂 \u200b",
    '<div class="a">&amp; <b>x</b></div>',
    "Text <think>Hm.</think> and text",
    "{{ messages }} {% if x %}",
    "<tool_response>\nx\n</tool_response>",
    '<tool_call>{"name": "x"}</tool_call>',
    "<|im_start|>system\n<|im_end|> [INST] x [/INST] <s> </s> <|channel|>final<|message|> <start_of_turn>",
    "a\r\nb",
    "cat /thinking.txt a/no_think/b //think",
    "\\ufdee \\\\ufdee <|im_end|>",
)
SWITCHING = ("HuggingFaceTB-SmolLM3-3B", "NVIDIA-Nemotron-Nano-v2")


def holding(text: str) -> dict[str, Conversation]:
    """Conversations in which somebody says a text."""
    written, nested = (
        ToolCall("call_1", "alpha", json.dumps({"qkey": value})) for value in (text, [{"a": text}])
    )
    return {
        "user": (says("user", text),),
        "earlier user": (says("user", text), SAID, MORE),
        "system": (says("system", text), ASKED),
        "late system": (ASKED, SAID, says("system", text), MORE),
        "assistant": (ASKED, says("assistant", text), MORE),
        "beside a call": (ASKED, Message("assistant", (Text(text), call(1))), result(1)),
        "argument": (ASKED, Message("assistant", (written,)), result(1)),
        "nested argument": (ASKED, Message("assistant", (nested,)), result(1)),
        "result": (ASKED, Message("assistant", (call(1),)), result(1, text)),
        "orphan": (ASKED, result(9, text), MORE),
    }


def request_of(messages: Conversation) -> GenerationRequest:
    tools = any(isinstance(part, ToolCall | ToolResult) for message in messages for part in message.parts)
    return chat(*messages, tools=TOOLS if tools else ())


def is_in(text: str, prompt: str) -> bool:
    text = text.strip()
    written = (json.dumps(text, ensure_ascii=escaped)[1:-1] for escaped in (True, False))
    return any(each in prompt for each in (text, *written, repr(text)[1:-1]))


def lost(template: str) -> list[tuple[str, str]]:
    found = prepared(template)
    return [
        (where, text)
        for text in TEXTS
        for where, messages in holding(text).items()
        if not is_in(text, text_of(found, request_of(messages)))
    ]


@pytest.mark.parametrize("template", ["Qwen3.5-4B", "openai-gpt-oss-120b", "Reka-Edge", *SWITCHING])
def test_any_text_is_in_the_prompt_of_a_template_that_looks_into_texts(template: str) -> None:
    assert lost(template) == []


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_any_text_is_in_the_prompt_of_every_template(family: Family) -> None:
    if family.file not in NO_CONVERSATIONS:
        assert lost(family.file) == []


@pytest.mark.parametrize("template", ["Reka-Edge", "ByteDance-Seed-OSS", "llama4_pythonic"])
def test_markers_in_values_that_a_template_escapes_are_text(template: str) -> None:
    """What shields markers is escaped, too, where a template writes JSON of ASCII or lists of Python."""
    call = ToolCall("call_1", "alpha", json.dumps({"qkey": ["<|im_end|>"]}))
    text = text_of(prepared(template), request_of((ASKED, Message("assistant", (call,)), result(1))))
    assert "<|im_end|>" in text
    assert "ufdee" not in text


@pytest.mark.parametrize(
    ("messages", "turn"),
    [
        ((says("user", "the secret"), SAID, MORE), 0),
        ((ASKED, says("assistant", "no secret"), MORE), 1),
        ((ASKED, SAID, says("user", "secret?")), 2),
        ((ASKED, Message("assistant", (call(1),)), result(1, "secret!")), 2),
    ],
)
def test_a_turn_that_a_template_leaves_out_for_its_words_is_refused_by_its_place(
    messages: Conversation, turn: int
) -> None:
    silent = preparer(
        "{% for m in messages %}{{ m.role }}: {{ (m.content or '').replace('secret', '') }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}"
    )
    report = refusal(silent, chat(*messages))
    assert report.param == f"messages[{turn}]"
    assert "leaves out a part" in report.message


@pytest.mark.parametrize(
    ("template", "role"), [(SWITCHING[0], "system"), (SWITCHING[1], "system"), (SWITCHING[1], "user")]
)
def test_a_switch_that_a_template_takes_out_is_told(template: str, role: str) -> None:
    messages = (says(role, "Be brief. /no_think\nPlease."), *([ASKED] if role == "system" else []))
    job = job_of(prepared(template), chat(*messages))
    assert "switch in 'messages[0]'" in job.accepted.warnings[0]
    text = text_of(prepared(template), chat(*messages))
    assert "Be brief." in text
    assert "Please." in text
    other = job_of(prepared(template), chat(says(role, "See /no_think.md"), ASKED))
    assert other.accepted.warnings == ()


def test_texts_may_stand_in_another_order_and_notation() -> None:
    messages = (
        says("system", "S"),
        ASKED,
        says("system", "late"),
        says("user", 'a "b"\n'),
        result(1, '{"x": "RES"}'),
    )
    assert Proof('late S USR a \\"b\\" <x>RES</x>', None).lost(messages) is None
    assert Proof("late S USR a b x", None).lost(messages) == 3


def test_a_search_in_vain_takes_bounded_time() -> None:
    prompt = "".join(f"text {number} " for number in range(100_000))
    messages = tuple(says("user", f"text {number} ") for number in range(99_999, 0, -1))
    began = time.process_time()
    assert Proof(prompt, None).lost(messages) is None
    assert time.process_time() - began < 2.0


def test_the_search_takes_a_small_part_of_what_tokenizing_takes() -> None:
    steps = [
        (Message("assistant", (Text(f"Step {n}."), call(n))), result(n, f"Result {n}: " + "word \n" * 300))
        for n in range(100)
    ]
    messages = (ASKED, *(message for step in steps for message in step))
    text = text_of(prepared("Qwen-Qwen3-0.6B"), request_of(messages))
    began = time.process_time()
    assert Proof(text, None).lost(messages) is None
    searched = time.process_time() - began
    prepared("Qwen-Qwen3-0.6B").tokenizer.encode(text)
    assert searched < (time.process_time() - began - searched) / 10
