"""The chat template: which conversations it writes, its marks as tokens, its thoughts and its tool calls."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from pippin.core.conversation import Message, Part, Reasoning, Role, Text, Tool, ToolCall, ToolResult
from pippin.core.errors import ServerError
from pippin.core.verification import Finding
from pippin.engines.language.prompt.forms import Conversation, Forms
from pippin.engines.language.prompt.messages import Converter
from pippin.engines.language.prompt.rendering import rendered
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal
from pippin.engines.language.template.traits import probe
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify.files import fault, note, warning
from pippin.output import formats
from pippin.output.reasoning_format import ReasoningFormat
from pippin.output.tool_format import History

TEMPLATE: Final = "fetch chat_template.jinja of the publisher again, or serve with --chat-template-file FILE"
USUAL: Final = ("one turn", "system", "three turns", "call and result")
MARK: Final = re.compile(r"<\|[^<>|\s]{1,40}\|>|<[a-z]+_of_[a-z]+>")
THINKS: Final = re.compile(r"</?(?:[a-z]+[:_])?(?:think|thinking|thoughts?|reasoning)>|\[/?THINK\]")
SCHEMA: Final = {"type": "object", "properties": {"qkey": {"type": "string", "description": "A key."}}}
TOOLS: Final = tuple(Tool(name, f"Does {name}.", SCHEMA) for name in ("alpha", "beta"))
ROLES: Final[dict[str, Role]] = {"s": "system", "d": "developer", "u": "user", "r": "tool", "n": "tool"}


@dataclass(frozen=True)
class Written:
    """A chat template and how this server gives it conversations."""

    template: ChatTemplate
    converter: Converter
    tokenizer: Tokenizer
    reasoning: ReasoningFormat | None
    tools: str | None  # the name of the format of calls

    @classmethod
    def open(cls, tokenizer: Tokenizer, architecture: str | None) -> "Written":
        """Compile the default template. Raises `jinja2.TemplateSyntaxError`, and `KeyError` where there is none."""
        source = tokenizer.chat_templates["default"]
        found = formats.detect(source, architecture)
        history = found.tool.history if found.tool is not None else History()
        template = ChatTemplate(source, tokenizer.special_names)
        converter = Converter(probe(template, history), history, tokenizer.literals, None)
        return cls(template, converter, tokenizer, found.reasoning, found.tool and found.tool.name)

    def render(self, messages: Conversation, tools: tuple[Tool, ...], generation: bool, **more: Any) -> str:
        """Raises `ServerError` where the template refuses the conversation."""
        variables = {"add_generation_prompt": generation, **more}
        return rendered(self.template, self.converter, messages, tools, variables)


@cache
def histories() -> dict[str, Conversation]:
    """Conversations that the APIs allow, by name. Each text occurs once in its conversation."""
    lines = resources.files(__package__).joinpath("data", "histories.txt").read_text("utf-8").splitlines()
    pairs = (line.rsplit(": ", 1) for line in lines)
    return {
        name: tuple(_turn(turn, place) for place, turn in enumerate(turns.split())) for name, turns in pairs
    }


def _turn(written: str, place: int) -> Message:
    parts = tuple(_part(each, f"TEXT{place}") for each in written.split("+"))
    return Message(ROLES.get(written[0], "assistant"), parts)


def _part(written: str, text: str) -> Part:
    kind, number = written[0], written[1:]
    match kind:
        case "h":
            return Reasoning("Hm.")
        case "c":
            return ToolCall(
                f"call_{number}", "alpha" if number == "1" else "beta", f'{{"qkey": "ARG{number}"}}'
            )
        case "r" | "n":
            return ToolResult(f"call_{number}", (Text(f"RESULT{number}" if kind == "r" else ""),))
        case _:
            return Text("" if kind == "e" else text)


def check(written: Written) -> Iterator[Finding]:
    yield from _roles(written)
    yield from _conversations(written)
    yield from _marks(written)
    yield from _start(written)
    yield from _thoughts(written)
    if written.converter.traits.tools and written.tools is None:
        yield warning(
            "tool-format",
            "The template offers tools, and Pippin knows no format of calls that it is written for.",
            "Calls may come out as text.",
            "serve with --tool-call-parser NAME",
        )


def outcomes(written: Written) -> dict[str, str]:
    """What becomes of each conversation: `kept`, the names of the changes that it needs, or `refused`."""
    forms, found = Forms(written.render), {}
    for name, messages in histories().items():
        calls = any(not isinstance(part, Text) for message in messages for part in message.parts)
        try:
            needed = forms.needed(messages, tools=calls, generation=messages[-1].role != "assistant")
            found[name] = ", ".join(form.__name__ for form in needed) or "kept"
        except ServerError as error:
            found[name] = f"refused: {error.report.message}"
    return found


def _conversations(written: Written) -> Iterator[Finding]:
    found = outcomes(written)
    refused = [name for name, outcome in found.items() if outcome.startswith("refused")]
    if refused:
        make = fault if set(refused) & set(USUAL) else note
        yield make(
            "conversation-refused",
            f"The template writes {len(refused)} of {len(found)} conversations in no form: {', '.join(refused)}.",
            "Requests with them are refused by the place of the turn.",
            TEMPLATE,
        )
    changed = {name: outcome for name, outcome in found.items() if name not in refused and outcome != "kept"}
    if changed:
        yield note(
            "conversation-changed",
            f"{len(changed)} of {len(found)} conversations are changed until the template writes all their words: "
            f"{'; '.join(f'{name} ({outcome})' for name, outcome in changed.items())}.",
        )


def _roles(written: Written) -> Iterator[Finding]:
    traits = written.converter.traits
    if not traits.system and _drops_system(written):
        yield warning(
            "system-dropped",
            "The template leaves the system's words out without an error.",
            "Other servers lose them; Pippin writes them in the user's turn.",
            TEMPLATE,
        )
    if traits.tools and not traits.tool_calls:
        yield warning(
            "tool-calls-lost",
            "The template offers tools and leaves out the assistant's earlier calls.",
            "Other servers lose them; Pippin writes them as text.",
            TEMPLATE,
        )
    elif traits.tools and not traits.tool_results:
        yield fault(
            "tool-role-lost",
            "The template offers tools and leaves out their results.",
            "An agent does not see what its tools said; Pippin writes it as text of the user.",
            TEMPLATE,
        )


def _drops_system(written: Written) -> bool:
    content: Any = "QXS" if written.converter.traits.content == "text" else [{"type": "text", "text": "QXS"}]
    messages = [{"role": "system", "content": content}, {"role": "user", "content": content}]
    try:
        return written.template.render(messages, {"add_generation_prompt": True}).count("QXS") == 1
    except TemplateRefusal:
        return False


def _marks(written: Written) -> Iterator[Finding]:
    """Marks that the template writes and that the tokenizer spells in letters."""
    texts = [_rendered(written, name) for name in ("system and three turns", "call and result")]
    marks = sorted({mark for text in texts for mark in MARK.findall(text)})
    spelled = [mark for mark in marks if written.tokenizer.single(mark) is None]
    if spelled:
        count = len(written.tokenizer.encode(spelled[0]))
        yield fault(
            "mark-not-token",
            f"The template writes {', '.join(spelled)}, which the tokenizer has not as tokens ({spelled[0]} is {count} "
            "tokens).",
            "The model never saw its turns marked so, and its answers do not end.",
            "fetch tokenizer.json and tokenizer_config.json of the publisher again",
        )


def _start(written: Written) -> Iterator[Finding]:
    bos = written.tokenizer.bos
    begun = written.tokenizer.encode(_rendered(written, "system and three turns"))
    if bos is not None and begun[:2] == [bos, bos]:
        yield fault(
            "bos-twice",
            "The template writes the token that begins a text twice.",
            "Answers become worse without an error.",
            TEMPLATE,
        )
    own = written.tokenizer.encode("a", add_special_tokens=True)
    if bos is not None and begun[:1] != [bos] and own[:1] == [bos]:
        yield note(
            "bos-left-out",
            "The tokenizer begins texts with a token that the template does not write.",
            "Conversations begin without it, here as in transformers.",
        )


def _rendered(written: Written, name: str, **more: Any) -> str:
    """A conversation as the template writes it; empty where it refuses it in each form."""
    messages = histories()[name]
    tools = TOOLS if "call" in name else ()
    try:
        kept = Forms(written.render).of(messages, tools=bool(tools))
        return written.render(kept, tools, True, **more)
    except ServerError:
        return ""


def _thoughts(written: Written) -> Iterator[Finding]:
    """The marks of thoughts that the template and the vocabulary have, against those that the server reads."""
    found, source = written.reasoning, written.template.source
    read = "\0".join(found.markers) if found is not None else ""
    tokens = [str(token.content) for token in written.tokenizer.pieces.added.values()]
    unread = sorted({tag for tag in THINKS.findall(source) if tag not in read})
    unwritten = sorted({tag for tag in tokens if THINKS.fullmatch(tag) and tag not in read})
    if unread:
        yield fault(
            "think-tags",
            f"The template writes {', '.join(unread)}; the server reads {_pair(found)}.",
            "Thoughts come out as the answer, or the answer as thoughts.",
            "serve with --thinking-start-token and --thinking-end-token, or with the publisher's template",
        )
    elif unwritten and (found is not None or "think" in source):
        yield fault(
            "think-tags",
            f"The tokenizer has the tokens {', '.join(unwritten)}, and the template writes "
            f"{found.start if found else 'none'}.",
            "The model marks its thoughts otherwise than the server reads them.",
            TEMPLATE,
        )
    if found is None:
        return
    on, off = (_rendered(written, "one turn", enable_thinking=on, thinking=on) for on in (True, False))
    with_thought = _rendered(written, "thought beside a call", enable_thinking=True, thinking=True)
    if any(_swapped(found, text) for text in (on, off, with_thought)):
        yield fault(
            "think-order",
            f"The template writes {found.end} before {found.start}.",
            "Thoughts come out as the answer, and the answer as thoughts.",
            TEMPLATE,
        )
    if on == off:
        asked = "enable_thinking" in source or "thinking" in re.sub(r"</?thinking>", "", source)
        make = warning if "enable_thinking" in source else note
        yield make(
            "think-switch",
            "The template writes the same with thinking on and off"
            f"{', though it asks for the switch' if asked else ''}.",
            "A client that turns thinking off waits for thoughts all the same.",
            TEMPLATE if "enable_thinking" in source else "bound it with thinking_budget",
        )


def _pair(found: ReasoningFormat | None) -> str:
    return "none" if found is None else f"{found.start} {found.end}"


def _swapped(found: ReasoningFormat, text: str) -> bool:
    """Whether thoughts end before they begin, in a format whose end marks nothing else."""
    if not THINKS.fullmatch(found.end.strip()):
        return False
    start, end = text.find(found.start.strip()), text.find(found.end.strip())
    return 0 <= end < start
