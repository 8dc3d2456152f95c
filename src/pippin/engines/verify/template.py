"""The chat template: which conversations it writes, its marks as tokens, its thoughts and its tool calls."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from pippin.core.conversation import Message, Role, Text
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.verification import Finding
from pippin.engines.language.prompt.forms import Conversation, Forms
from pippin.engines.language.prompt.messages import Converter
from pippin.engines.language.prompt.rendering import TemplateWriter
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.template.traits import Trial, probe
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify import turns
from pippin.engines.verify.findings import data, finding
from pippin.output import formats
from pippin.output.reasoning_formats import ReasoningFormat
from pippin.output.tool_format import History

USUAL: Final = ("one turn", "system", "three turns", "five turns", "call and result")
MARK: Final = re.compile(r"<\|[^<>|\s]{1,40}\|>|<[a-z]+_of_[a-z]+>")
TURNS: Final = {
    "<|im_end|>": "<|im_start|>",
    "<end_of_turn>": "<start_of_turn>",
    "<|eot_id|>": "<|start_header_id|>",
}
"""What begins a turn, by what ends it."""
NAME: Final = re.compile(rf"(?:{MARK.pattern})([A-Za-z]+)\b")
"""A word right behind a mark, where the speaker's name stands."""
SPEAKERS: Final = ("assistant", "system", "user", "model", "developer", "observation", "environment")
SPEAKER: Final = re.compile(r"\A[\0\s]*[^\0\s]*")
"""The speaker's name with what stands before it, in a text whose marks are replaced by NUL."""
THINKS: Final = re.compile(r"</?(?:[a-z]+[:_])?(?:think|thinking|thoughts?|reasoning)>|\[/?THINK\]")
SWITCH: Final = re.compile(r"(?<![.\w])enable_thinking(?!\s*=[^=])")
"""The variable that turns thoughts off, and not a template's own of this name."""
WORDS: Final = 'Is "A < B & C" it\'s?\n\n    if x:\n\ty = {}  # é 漢 ' + "and so on " * 200 + "End"
"""What a template must not change: upper case, quotes, lines, white space, and length."""


@dataclass(frozen=True)
class Written(TemplateWriter):
    """A chat template, and what else a model's folder says of what it writes."""

    tokenizer: Tokenizer
    reasoning: ReasoningFormat | None
    tools: str | None  # the name of the format of calls

    @classmethod
    def open(cls, tokenizer: Tokenizer, architecture: str | None) -> "Written":
        """Compile the default template. Raises `jinja2.TemplateSyntaxError`, and `KeyError` where there is none."""
        source = tokenizer.chat_templates["default"]
        found = formats.detect(source, architecture)
        history = found.tools.history if found.tools is not None else History()
        template = ChatTemplate(source, tokenizer.special_names)
        converter = Converter(probe(template, history), history, tokenizer.literals, None)
        return cls(template, converter, tokenizer, found.reasoning, found.tools.name if found.tools else None)


@cache
def histories() -> dict[str, Conversation]:
    """Conversations that the APIs allow, by name. Each text occurs once in its conversation."""
    return dict(from_json(line, tuple[str, Conversation]) for line in data("histories.jsonl").splitlines())


def check(written: Written, found: dict[str, str]) -> Iterator[Finding]:
    """Try the template; `found` are its `outcomes`."""
    yield from _roles(written)
    yield from _conversations(found)
    yield from _answers(written)
    yield from _marks(written)
    yield from _thoughts(written)
    yield from turns.check(written)


def compare(written: Written, other: Written) -> Iterator[Finding]:
    """Compare with the template of the model before it was quantised."""
    unlike = [name for name in histories() if _rendered(written, name) != _rendered(other, name)]
    if unlike:
        yield finding("other-writing", what="How conversations are written", fields=unlike)


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


def _conversations(found: dict[str, str]) -> Iterator[Finding]:
    refused = [name for name, outcome in found.items() if outcome.startswith("refused")]
    if refused:
        usual = set(refused) & set(USUAL)
        yield finding(
            "conversation-refused",
            None if usual else "note",
            count=len(refused),
            all=len(found),
            names=refused,
        )
    changed = [f"{name} ({said})" for name, said in found.items() if name not in refused and said != "kept"]
    if changed:
        yield finding("conversation-changed", count=len(changed), all=len(found), names=changed)


def _roles(written: Written) -> Iterator[Finding]:
    traits = written.converter.traits
    trial = Trial(written.template)
    said = [{"role": role, "content": trial.text(f"QX{role}")} for role in ("system", "user")]
    if not traits.system and trial.says(said, "QXuser"):
        yield finding("system-dropped")
    if not traits.tools and re.search(r"\bin tools\b|\btools ?\|", written.template.source):
        yield finding("tools-lost")
    if traits.tools and not traits.tool_calls:
        yield finding("tool-calls-lost")
    elif traits.tools and not traits.tool_results:
        yield finding("tool-role-lost")
    if traits.tools and written.tools is None:
        yield finding("tool-format")


def _answers(written: Written) -> Iterator[Finding]:
    """What stands before an answer, in a prompt and in history, and whether texts stay as they are."""
    roles: tuple[Role, ...] = ("user", "assistant", "user")
    said = tuple(Message(role, (Text(f"{place}. {WORDS}"),)) for place, role in enumerate(roles))
    try:
        asked, prompt = (written.render(said[:1], (), generation) for generation in (False, True))
        told = written.render(said, (), True)
    except ServerError:  # a conversation that is refused is told as one
        return
    changed = [role for place, role in enumerate(roles) if told.count(f"{place}. {WORDS}") != 1]
    if changed:
        yield finding("words-changed", role=changed[0])
    # A template without marks leaves it to the model to tell who speaks.
    if changed or not MARK.search(told):
        return
    before, after = told.split(f"1. {WORDS}")
    ends = written.tokenizer.encode(after.partition("2. ")[0])
    if not written.converter.traits.turn_end and written.tokenizer.eos.isdisjoint(ends):
        yield finding("turn-open")
    if before.startswith(asked) and prompt.startswith(asked):
        end = written.tokenizer.single(written.tokenizer.special_names.get("eos_token", ""))
        if end is not None and end in written.tokenizer.encode(prompt.removeprefix(asked))[:1]:
            yield finding("eos-is-text", id=end, piece=written.tokenizer.raw(end))
        own, before = (THINKS.sub("", text.removeprefix(asked)).strip() for text in (prompt, before))
        # The first mark and word are the speaker's; thoughts may follow in one of them alone.
        first, second = (
            (MARK.findall(text)[:1], SPEAKER.findall(MARK.sub("\0", text))) for text in (own, before)
        )
        # Some prompts begin the answer's thoughts in words, which history leaves out.
        if first != second and not (before and own.startswith(before)):
            yield finding("answer-begins", own=own, before=before)


def _marks(written: Written) -> Iterator[Finding]:
    """Marks that the template writes and that the tokenizer spells in letters, and the one that begins a text."""
    texts = [_rendered(written, name) for name in ("system and three turns", "call and result")]
    marks = sorted({mark for text in texts for mark in MARK.findall(text)})
    for name in {name.lower() for text in texts for name in NAME.findall(text)} - {*SPEAKERS}:
        for meant in get_close_matches(name, SPEAKERS, 1, 0.85):
            yield finding("speaker-misspelt", name=name, meant=meant)
    spelled = [mark for mark in marks if written.tokenizer.single(mark) is None]
    if spelled:
        yield finding("mark-not-token", marks=spelled)
    eos = written.tokenizer.special_names.get("eos_token", "")
    start = TURNS.get(eos)
    if start and written.tokenizer.single(start) is not None and texts[0] and texts[0].count(start) < 2:
        yield finding("turns-unmarked", start=start, end=eos)
    bos, begun = written.tokenizer.bos, written.tokenizer.encode(texts[0])
    if begun[:2] == [bos, bos]:
        yield finding("bos-twice", who="template")
    usual = written.tokenizer.encode("a", add_special_tokens=True)
    if usual[:1] == [bos] and begun[:1] != [bos]:
        yield finding("bos-left-out")


def _rendered(written: Written, name: str, **more: Any) -> str:
    """A conversation as the template writes it; empty where it refuses it in each form."""
    messages = histories()[name]
    tools = turns.TOOLS if "call" in name else ()
    try:
        kept = Forms(written.render).of(messages, tools=bool(tools))
        return written.render(kept, tools, True, **more)
    except ServerError:
        return ""


def _thoughts(written: Written) -> Iterator[Finding]:
    """The marks of thoughts that the template and the vocabulary have, against those that the server reads."""
    found, source = written.reasoning, written.template.source
    read = "\0".join(found.markers) if found is not None else ""
    on, off, with_thought = (
        _rendered(written, name, enable_thinking=thinks, thinking=thinks)
        for name, thinks in (("one turn", True), ("one turn", False), ("thought beside a call", True))
    )
    written_or_searched = "\0".join((on, off, with_thought, *written.template.searched_marks))
    tokens = [str(token.content) for token in written.tokenizer.pieces.added.values()]
    unread = sorted({tag for tag in THINKS.findall(written_or_searched) if tag not in read})
    unwritten = sorted({tag for tag in tokens if THINKS.fullmatch(tag) and tag not in read})
    pair = "none" if found is None else f"{found.start} {found.end}"
    if unread:
        yield finding("think-tags", who="template", tags=unread, read=pair)
    elif unwritten and (found is not None or "think" in source):
        yield finding("think-tags", who="tokenizer", tags=unwritten, read=pair)
    if found is None:
        return
    if any(_swapped(found, text) for text in (on, off, with_thought)):
        yield finding("think-order", start=found.start, end=found.end)
    if on == off:
        yield finding("think-switch", None if SWITCH.search(source) else "note")
    elif _ends(on, found.end) > _ends(off, found.end) or _ends(off, found.start):
        yield finding("think-inverted", on=on[-40:], off=off[-40:])


def _ends(prompt: str, mark: str) -> bool:
    """Whether a prompt ends with a mark of thoughts."""
    return prompt.rstrip().endswith(mark.strip())


def _swapped(found: ReasoningFormat, text: str) -> bool:
    """Whether thoughts end before they begin, in a format whose end marks nothing else."""
    if not THINKS.fullmatch(found.end.strip()):
        return False
    start, end = text.find(found.start.strip()), text.find(found.end.strip())
    return 0 <= end < start
