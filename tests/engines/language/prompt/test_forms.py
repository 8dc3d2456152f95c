"""Whatever an API allows is in the prompt, in order, or refused by the name of its turn: for every fetched template."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from pippin.core.conversation import Message, Part, Text, Tool, ToolCall, ToolResult
from pippin.core.errors import ServerError
from pippin.engines.language.prompt.forms import Forms
from pippin.engines.language.prompt.rendering import TemplateWriter
from pippin.engines.language.text.tokenizer import plain
from tests.engines.language.prompt.histories import (
    AGENT,
    ASKED,
    HISTORIES,
    MORE,
    PLAIN,
    SAID,
    SYSTEM,
    TOOLS,
    UNUSUAL,
    Conversation,
    call,
    result,
    says,
)
from tests.output.families import FAMILIES, Family, renderer_of

STRICT = (
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "gemma3_pythonic",
    "google-gemma-4-31B-it",
    "IFM-K2-Horizon",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "openai-gpt-oss-120b",
    "Qwen3.5-4B",
)
NO_CONVERSATIONS = ("fireworks-ai-llama-3-firefunction-v2", "google-translategemma-4b-it")
"""Templates that take no list of messages as the APIs have it."""


class Template:
    """A fetched template, and the forms that its conversations need."""

    variables = {"enable_thinking": True, "thinking": True}

    def __init__(self, family: Family) -> None:
        self.renderer = renderer_of(family)
        self.forms = Forms(self.render)

    def render(self, messages: Conversation, tools: tuple[Tool, ...], generation: bool) -> str:
        writer = TemplateWriter(self.renderer.template, self.renderer.converter)
        return writer.render(messages, tools, generation, **self.variables)

    def needed(self, name: str, messages: Conversation = ()) -> tuple[str, ...]:
        """The forms that a history needs; `messages` are the history as it arrives in an API."""
        generation = answers(HISTORIES[name])
        forms = self.forms.needed(messages or HISTORIES[name], tools=name in AGENT, generation=generation)
        return tuple(form.__name__ for form in forms)

    def prompt(self, name: str, messages: Conversation = ()) -> str:
        messages, tools = messages or HISTORIES[name], TOOLS if name in AGENT else ()
        generation = answers(HISTORIES[name])
        kept = self.forms.of(messages, tools=bool(tools), generation=generation)
        return self.render(kept, tools, generation)


def answers(messages: Conversation) -> bool:
    return messages[-1].role != "assistant"


def words(messages: Conversation) -> list[str]:
    """All that a conversation says: texts, names and arguments of calls, results."""
    found: list[str] = []
    for part in (part for message in messages for part in message.parts):
        match part:
            case Text(text):
                found.append(text.strip())
            case ToolCall(_, name, arguments):
                found += [name, *re.findall(r"ARG\d", arguments)]
            case ToolResult(_, parts):
                found += [each.text for each in parts if isinstance(each, Text)]
    return [word for word in found if word]


def lost(name: str, prompt: str) -> list[str]:
    return [
        word for word in words(HISTORIES[name]) if word not in prompt and json.dumps(word)[1:-1] not in prompt
    ]


def family(file: str) -> Family:
    return next(family for family in FAMILIES if family.file == file)


@pytest.mark.parametrize("file", STRICT)
def test_no_word_of_a_conversation_is_lost_by_a_strict_template(file: str) -> None:
    template = Template(family(file))
    assert {name: found for name in HISTORIES if (found := lost(name, template.prompt(name)))} == {}


BLANK = (Text(" "),), (Text("\n\n"),)
CALLED = (ToolCall("c1", "alpha", '{"qkey": "ARG1"}'),)


@pytest.mark.parametrize("file", STRICT)
@pytest.mark.parametrize(
    "parts", [(*blank, *CALLED) for blank in BLANK] + [(*CALLED, *blank) for blank in BLANK]
)
def test_white_space_beside_a_call_hides_it_from_no_template(file: str, parts: tuple[Part, ...]) -> None:
    result = ToolResult("c1", (Text("RES1"),), "alpha")
    messages = (Message("user", (Text("USR"),)), Message("assistant", parts), Message("tool", (result,)))
    prompt = Template(family(file)).prompt("two turns with calls in a row", messages)
    assert [word for word in ("USR", "ARG1", "RES1") if word not in prompt] == []


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_no_word_of_a_conversation_is_lost_by_any_template_in_any_api(family: Family) -> None:
    from tests.engines.language.prompt.conversations_table import NAMES, in_dialect

    template = Template(family)
    for path, name in itertools.product(NAMES, HISTORIES):
        messages = in_dialect(path, name)
        if family.file in NO_CONVERSATIONS:
            with pytest.raises(ServerError, match=r"messages\[\d+\]"):
                template.prompt(name, messages)
        else:
            assert lost(name, template.prompt(name, messages)) == [], (path, name)


def unusual() -> Iterator[tuple[str, Conversation, tuple[Tool, ...]]]:
    """Conversations that few clients make; those with calls also without tools on offer, others with."""
    yield from ((name, messages, TOOLS) for name, messages in UNUSUAL.items())
    yield from ((name, messages, ()) for name, messages in (AGENT | UNUSUAL).items())
    yield from ((name, messages, TOOLS) for name, messages in PLAIN.items())


def unusual_lost(family: Family) -> dict[str, list[str]]:
    template, found = Template(family), {}
    for name, messages, tools in unusual():
        generation = answers(messages)
        kept = template.forms.of(messages, tools=bool(tools), generation=generation)
        prompt = template.render(kept, tools, generation)
        found[f"{name}, {len(tools)} tools"] = [
            word for word in words(messages) if word not in prompt and json.dumps(word)[1:-1] not in prompt
        ]
    return {name: words for name, words in found.items() if words}


@pytest.mark.parametrize("file", ["openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct"])
def test_no_word_of_an_unusual_conversation_is_lost(file: str) -> None:
    assert unusual_lost(family(file)) == {}


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_no_word_of_an_unusual_conversation_is_lost_by_any_template(family: Family) -> None:
    assert family.file in NO_CONVERSATIONS or unusual_lost(family) == {}


def held(mark: str) -> dict[str, Conversation]:
    """Conversations in which somebody writes a mark."""
    text = f"LEFT {mark} RIGHT"
    written = ToolCall("call_1", "alpha", json.dumps({"qkey": text}))
    return {
        "user": (says("user", text), SAID, MORE),
        "assistant": (ASKED, says("assistant", text), MORE),
        "before a call": (ASKED, Message("assistant", (Text(text), call(1))), result(1)),
        "argument": (ASKED, Message("assistant", (written,)), result(1)),
        "result": (ASKED, Message("assistant", (call(1),)), result(1, text)),
        "behind a thought": (ASKED, says("assistant", f"<think>Hm.</think>{text}"), MORE),
    }


def marks_lost(family: Family) -> dict[str, list[str]]:
    template, found = Template(family), {}
    for mark in ("</think>", *template.renderer.template.searched_marks):
        for where, messages in held(mark).items():
            tools = TOOLS if len(messages[1].parts) > 1 or where in ("argument", "result") else ()
            kept = template.forms.of(messages, tools=bool(tools))
            prompt = plain(template.render(kept, tools, True))
            text = f"LEFT {mark} RIGHT"
            if text not in prompt and json.dumps(text, ensure_ascii=False)[1:-1] not in prompt:
                found.setdefault(where, []).append(mark)
    return found


@pytest.mark.parametrize(
    "file",
    ["Qwen3.5-4B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "GLM-4.6", "llama-cpp-rwkv-world", "gemma4"],
)
def test_a_text_that_holds_a_mark_of_the_template_is_kept_whole(file: str) -> None:
    assert marks_lost(family(file)) == {}


SWITCHED = {"NVIDIA-Nemotron-Nano-v2": {"user": ["/no_think", "/think"]}}
"""Templates with switches that they take out of what the user says, which is told (`test_proof.py`)."""


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_every_template_keeps_texts_that_hold_its_marks(family: Family) -> None:
    if family.file not in NO_CONVERSATIONS:
        assert marks_lost(family) == SWITCHED.get(family.file, {})


def test_a_thought_that_a_text_begins_with_is_the_templates_to_take_out() -> None:
    template = Template(family("Qwen3.5-4B"))
    said = says("assistant", "<think>HIDDEN</think>SHOWN")
    prompt = template.render((ASKED, said, MORE), (), True)
    assert "SHOWN" in prompt
    assert "HIDDEN" not in prompt


@pytest.mark.parametrize("file", ["Qwen-Qwen3-0.6B", "HuggingFaceTB-SmolLM3-3B", "GLM-4.6"])
def test_a_conversation_that_a_template_writes_whole_stays_as_it_is(file: str) -> None:
    template = Template(family(file))
    for name in ("system and three turns", "call and result", "two calls", "user behind a result"):
        assert template.needed(name) == (), name


@pytest.mark.parametrize(
    ("file", "kept", "changed"),
    [
        ("Qwen-Qwen3-0.6B", ("late system", "system at the end", "late system between steps"), ()),
        (
            "Mistral-Small-3.2-24B-Instruct-2506",
            ("system at the end", "system behind a result"),
            ("late system",),
        ),
        ("Qwen3.5-4B", (), ("late system", "system at the end", "late system between steps")),
    ],
)
def test_what_the_system_says_late_stays_where_the_template_writes_it(
    file: str, kept: tuple[str, ...], changed: tuple[str, ...]
) -> None:
    template = Template(family(file))
    assert [template.needed(name) for name in kept] == [()] * len(kept)
    assert {template.needed(name) for name in changed} <= {("late_system_in_turn",)}


def test_a_turn_that_no_form_can_express_is_refused_by_its_place() -> None:
    def only_users(messages: Conversation, tools: tuple[Tool, ...], generation: bool) -> str:
        if any(
            part.text == "QX1Z" for message in messages for part in message.parts if isinstance(part, Text)
        ):
            raise ServerError("invalid_request", "The second text is too much.")
        return " ".join(part.text for message in messages for part in message.parts if isinstance(part, Text))

    with pytest.raises(ServerError) as refused:
        Forms(only_users).of((ASKED, SAID, MORE), tools=False)
    assert refused.value.report.param == "messages[1]"
    assert "The second text is too much." in refused.value.report.message


def test_what_was_found_for_a_kind_of_conversation_is_not_tried_again() -> None:
    calls: Counter[str] = Counter()

    def counted(messages: Conversation, tools: tuple[Tool, ...], generation: bool) -> str:
        calls["render"] += 1
        return " ".join(part.text for message in messages for part in message.parts if isinstance(part, Text))

    forms = Forms(counted)
    for number in range(3):
        forms.of((SYSTEM, says("user", f"Question {number}")), tools=False)
    assert calls["render"] == 1


@pytest.mark.parametrize("file", ["Qwen-Qwen3-0.6B", "GLM-4.6", "meta-llama-Llama-3.1-8B-Instruct"])
def test_a_result_stands_where_its_call_is_looked_for(file: str) -> None:
    """Parallel calls end in any order. A template that writes no ids leaves it to the order which result is whose."""
    prompt = Template(family(file)).prompt("two calls, results the other way")
    assert prompt.index("RES1") < prompt.index("RES2")
    assert prompt.index("ARG1") < prompt.rindex("RES1")
    assert prompt.index("ARG2") < prompt.rindex("RES2")


def test_calls_whose_ids_are_used_again_keep_their_own_results() -> None:
    template = Template(family("meta-llama-Llama-3.1-8B-Instruct"))
    prompt = template.prompt("ids used again")
    assert prompt.index("ARG1") < prompt.index("RES1") < prompt.index("ARG2") < prompt.index("RES2")


def test_a_long_conversation_is_changed_as_its_beginning_needs() -> None:
    template = Template(family("meta-llama-Llama-3.1-8B-Instruct"))
    steps = [
        (Message("assistant", (Text("SAID"), call(2 * n), call(2 * n + 1))), result(2 * n), result(2 * n + 1))
        for n in range(120)
    ]
    messages = (ASKED, *itertools.chain.from_iterable(steps))
    kept = template.forms.of(messages, tools=True)
    prompt = template.render(kept, TOOLS, True)
    assert all(f"RES{number}" in prompt and f"ARG{number}" in prompt for number in range(240))


def test_pictures_keep_their_turn() -> None:
    from pippin.core.conversation import Image, Inline

    picture = Image(Inline(b""))
    for parts in ((picture, Text("Look")), (picture, picture, Text("Look")), (picture,)):
        asked = Message("user", parts)
        forms = Forms(Template(family("Qwen-Qwen3-0.6B")).render)
        assert forms.of((asked,), tools=False) == (asked,)


@pytest.mark.long
def test_the_page_says_what_each_template_needs() -> None:
    from tests.engines.language.prompt.conversations_table import PAGE, with_table

    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


@pytest.mark.parametrize(
    "name", ["system alone", "two systems alone", "system, assistant first", "two systems"]
)
def test_the_systems_words_have_a_turn_where_the_template_has_no_system(name: str) -> None:
    written = Template(family("google-gemma-2-2b-it")).prompt(name)
    assert all(text in written for text in words(HISTORIES[name]))
