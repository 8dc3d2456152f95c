"""Brings a conversation into a form that the chat template writes without losing anything.

The APIs allow more than many templates do: a user turn behind a tool's result, calls made in parallel, a result whose
call was cut out of the history, a conversation that the assistant begins. Whether a template writes a conversation is
tried on its skeleton: the same turns, each text a word that occurs nowhere else. If words are missing in what the
template makes of it, or out of order, other forms of the conversation are tried, the smallest changes first.

A skeleton depends only on the kinds of turns and parts, so what was found is kept for later conversations of that
kind. A conversation that the template writes as it is stays as it is.

But templates look into texts as well: they cut them at a mark, or take words out. So what was said is looked for in the
prompt, too (`Proof`). Each text is searched for behind the one before it, which reads the prompt about once.
"""

import contextlib
import hashlib
import itertools
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property, partial, reduce
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pippin.core.conversation import Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult, seamed
from pippin.core.errors import ServerError
from pippin.engines.language.prompt.messages import parsed_arguments, without_thought
from pippin.engines.language.template.template import TemplateTooCostly
from pippin.engines.language.text.tokenizer import BREAK, NAME

Conversation = tuple[Message, ...]
Form = Callable[[Conversation], Conversation]
Render = Callable[[Conversation, tuple[Tool, ...], bool], str]
"""Renders a conversation with tools on offer, and with the beginning of an answer if the flag says so. Raises
`ServerError` where the template refuses it."""

SYSTEM: Final = ("system", "developer")
PARAGRAPH: Final = "\n\n"
"""Between texts of different authors in one turn."""
MOST_FORMS: Final = 3
"""Most changes that are combined."""
MOST_KEPT: Final = 512
"""Most kinds of conversations whose forms are kept. Once there are as many, all are looked for anew."""
LONG: Final = 200
"""Conversations of more turns are tried with the changes that so many of them need, and with one change at a time."""


def one_call_a_turn(messages: Conversation) -> Conversation:
    """Parallel calls as turns of one call, each followed by its result."""
    split: list[Message] = []
    moved: set[int] = set()
    for index, message in enumerate(messages):
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if message.role != "assistant" or len(calls) < 2:
            kept = tuple(part for part in message.parts if id(part) not in moved)
            split += [replace(message, parts=kept)] if kept or not message.parts else []
            continue
        beside = tuple(part for part in message.parts if not isinstance(part, ToolCall))
        results = _results_after(messages, index)
        for call in calls:
            split.append(replace(message, parts=(*beside, call)))
            beside = ()
            if (result := results.get(call.id)) is not None:
                moved.add(id(result))
                split.append(Message("tool", (result,)))
    return tuple(split)


def results_as_called(messages: Conversation) -> Conversation:
    """Results in the order of their calls, for a template that does not say whose they are."""
    changed = list(messages)
    for index, message in enumerate(messages):
        calls = [part.id for part in message.parts if isinstance(part, ToolCall)]
        order = {id_: place for place, id_ in enumerate(calls)}
        following = itertools.takewhile(lambda each: _only(each, ToolResult), messages[index + 1 :])
        run = list(following) if len(calls) > 1 else []
        parts = [
            replace(part, name=part.name or each.name)
            for each in run
            for part in each.parts
            if isinstance(part, ToolResult)
        ]
        ordered = iter(sorted(parts, key=lambda part: order.get(part.call_id, len(order))))
        for place, each in enumerate(run, index + 1):
            changed[place] = replace(each, parts=tuple(itertools.islice(ordered, len(each.parts))), name=None)
    return tuple(changed)


def calls_without_blanks(messages: Conversation) -> Conversation:
    """Turns with calls without texts of white space alone, which some templates write instead of the calls."""
    return tuple(
        replace(each, parts=tuple(filter(_says_something, each.parts))) if _calls(each) else each
        for each in messages
    )


def text_before_calls(messages: Conversation) -> Conversation:
    """The text of a turn with calls as a turn of its own; its thoughts stay with the calls."""
    split: list[Message] = []
    for message in messages:
        texts = tuple(part for part in message.parts if isinstance(part, Text))
        rest = tuple(part for part in message.parts if part not in texts)
        apart = (texts, rest) if texts and _calls(message) else (message.parts,)
        split += [replace(message, parts=parts) for parts in apart]
    return tuple(split)


def orphans_as_text(messages: Conversation) -> Conversation:
    """Results whose call is not in the conversation, as text of the user."""
    called: set[str] = set()
    changed: list[Message] = []
    for message in messages:
        called |= {part.id for part in message.parts if isinstance(part, ToolCall)}
        parts = tuple(
            each
            for part in message.parts
            for each in (
                _as_text(part) if isinstance(part, ToolResult) and part.call_id not in called else (part,)
            )
        )
        changed += [message] if parts == message.parts else _by_role(message, parts)
    return tuple(changed)


def calls_as_text(messages: Conversation) -> Conversation:
    """Calls and results as text, for a template that can't write them in this conversation."""
    changed: list[Message] = []
    for message in messages:
        parts = tuple(each for part in message.parts for each in _as_text(part))
        changed += _by_role(message, parts) if message.role == "tool" else [replace(message, parts=parts)]
    return tuple(changed)


def answered_results(messages: Conversation) -> Conversation:
    """An empty turn of the assistant between a tool's result and a turn of the user."""
    spread: list[Message] = []
    for message in _results_apart(messages):
        if spread and _has_result(spread[-1]) and _asks(message):
            spread.append(Message("assistant", (Text(""),)))
        spread.append(message)
    return tuple(spread) if len(spread) > len(messages) else messages


def user_first(messages: Conversation) -> Conversation:
    """An empty turn of the user before an assistant that speaks first."""
    first = _opening(messages)
    if first == len(messages) or messages[first].role == "user":
        return messages
    return (*messages[:first], Message("user", (Text(""),)), *messages[first:])


def asked(messages: Conversation) -> Conversation:
    """An empty turn of the user behind a conversation that has none."""
    if any(_asks(message) for message in messages):
        return messages
    return (*messages, Message("user", (Text(""),)))


def one_system(messages: Conversation) -> Conversation:
    """All that the system says at the start in one message."""
    opening = messages[: _opening(messages)]
    if len(opening) < 2:
        return messages
    return (replace(opening[0], parts=_said(opening)), *messages[len(opening) :])


def system_in_turn(messages: Conversation) -> Conversation:
    """What the system says at the start at the head of the user's first turn, or as a turn before anyone else's."""
    first = _opening(messages)
    said = _said(messages[:first])
    turns = messages[first:]
    if not said:
        return messages
    if not turns or turns[0].role != "user":
        return (Message("user", said), *turns)
    return (replace(turns[0], parts=seamed(said, turns[0].parts, PARAGRAPH)), *turns[1:])


def late_system_in_turn(messages: Conversation) -> Conversation:
    """What the system says later as marked text of the turns around it, so that the computed prefix of a conversation
    stays valid in its next turn.

    It stands at the end of the user's turn or the result right before it, else at the end of the result or the head of
    the user's turn right behind it, else in a turn of its own.
    """
    opening = _opening(messages)
    placed = list(messages[:opening])
    waiting: tuple[Part, ...] = ()
    for message in messages[opening:]:
        if message.role in SYSTEM:
            marked = _marked(message.parts) if any(map(_says_something, message.parts)) else ()
            if waiting or not (_has_result(placed[-1]) or placed[-1].role == "user"):
                waiting = seamed(waiting, marked, PARAGRAPH)
            else:
                placed[-1] = _with_end(placed[-1], marked)
            continue
        if waiting and _has_result(message):
            message, waiting = _with_end(message, waiting), ()
        elif waiting and message.role == "user":
            message, waiting = replace(message, parts=seamed(waiting, message.parts, PARAGRAPH)), ()
        placed += [Message("user", waiting)] if waiting else []
        placed.append(message)
        waiting = ()
    return (*placed, *([Message("user", waiting)] if waiting else []))


def merged_turns(messages: Conversation) -> Conversation:
    """Turns of one speaker in a row as one turn."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is not None and last.role == message.role and message.role in ("user", "assistant"):
            parts = seamed(last.parts, message.parts, "\n")
            merged[-1] = replace(last, parts=parts, pin=last.pin or message.pin)
        else:
            merged.append(message)
    return tuple(merged)


def question_in_result(messages: Conversation) -> Conversation:
    """The user's text behind a tool's result as the end of that result."""
    changed: list[Message] = []
    for message in _results_apart(messages):
        if changed and _has_result(changed[-1]) and message.role == "user" and _only(message, Text):
            changed[-1] = replace(_with_end(changed[-1], message.parts), pin=message.pin)
        else:
            changed.append(message)
    return tuple(changed)


def without_empty_turns(messages: Conversation) -> Conversation:
    """Turns that say nothing left out, unless nothing else is said."""
    kept = tuple(message for message in messages if any(_says_something(part) for part in message.parts))
    return kept or messages


FORMS: Final[tuple[Form, ...]] = (
    calls_without_blanks,
    results_as_called,
    text_before_calls,
    one_call_a_turn,
    orphans_as_text,
    answered_results,
    merged_turns,
    user_first,
    asked,
    without_empty_turns,
    one_system,
    question_in_result,
    system_in_turn,
)
"""In the order in which they are tried: those that change less come first. `late_system_in_turn` is tried before each
of them, and `calls_as_text` behind all."""


class Forms:
    """The forms of conversations for one chat template. Several threads may use it at once."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._kept: dict[bytes, tuple[Form, ...]] = {}

    def of(self, messages: Conversation, *, tools: bool, generation: bool = True) -> Conversation:
        """The conversation in the first form that the template writes whole; `generation`: an answer follows.

        Raises `ServerError` that names the first turn which no form can express.
        """
        return _changed(messages, self.needed(messages, tools=tools, generation=generation))

    def needed(self, messages: Conversation, *, tools: bool, generation: bool = True) -> tuple[Form, ...]:
        """The changes that a conversation of this kind needs. Raises `ServerError` as `of` does."""
        skeleton = Skeleton(messages, tools=tools, generation=generation)
        key = skeleton.digest()
        found = self._kept.get(key)
        if found is None:
            found = self._find(skeleton)
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _find(self, skeleton: "Skeleton") -> tuple[Form, ...]:
        known = [forms for forms in dict.fromkeys(tuple(self._kept.values())) if calls_as_text not in forms]
        if len(skeleton.messages) > LONG:
            with contextlib.suppress(ServerError):
                known.insert(0, self._find(skeleton.first(LONG)))
        for forms in itertools.chain([()], known, _combinations(skeleton.messages)):
            if self._missing(skeleton, forms) is None:
                return forms
        raise self._refusal(skeleton)

    def _missing(self, skeleton: "Skeleton", forms: tuple[Form, ...]) -> str | None:
        """The first word that is not written, or not in its order; the template's own words if it refuses."""
        try:
            text = self._render(_changed(skeleton.messages, forms), skeleton.tools, skeleton.generation)
        except ServerError as error:
            if isinstance(error.__cause__, TemplateTooCostly):  # other forms would cost as much
                raise
            return str(error.__cause__ or error)
        return skeleton.missing(text, in_turn=calls_as_text in forms)

    def _refusal(self, skeleton: "Skeleton") -> ServerError:
        """The refusal of the first turn with which no change alone helps."""
        lengths = range(1, len(skeleton.messages))
        turns = 1 + bisect_left(lengths, True, key=lambda n: not self._expressible(skeleton.first(n)))
        reason = self._missing(skeleton.first(turns), ()) or ""
        why = f" ({reason})" if reason and not skeleton.has(reason) else ""
        return ServerError(
            "invalid_request",
            f"The model's chat template can't express 'messages[{turns - 1}]' at this place of the conversation{why}. "
            "Leave the turn out, or choose another model.",
            f"messages[{turns - 1}]",
        )

    def _expressible(self, skeleton: "Skeleton") -> bool:
        alone = [(), *((form,) for form in (*FORMS, calls_as_text))]
        tried = itertools.product(((), (late_system_in_turn,)), alone)
        return any(self._missing(skeleton, (*late, *forms)) is None for late, forms in tried)


class Skeleton:
    """A conversation whose texts are words that occur nowhere else, so that what became of each can be seen."""

    def __init__(self, messages: Conversation, *, tools: bool, generation: bool) -> None:
        self.generation = generation
        self._offers = tools
        self._count = itertools.count()
        # Words of the system before the first turn: templates have places of their own for them.
        self._opening: list[str] = []
        self._said: list[str] = []  # words of turns, in their order
        self._results: list[tuple[str, str]] = []  # words of results, each with the word of its call
        self._calls: dict[str, str] = {}  # ids of calls, and the name of the last call with that id
        self._names = ["qxt"]
        self._turns = False  # somebody but the system has spoken
        self.messages = tuple(self._message(message) for message in messages)
        properties = {"qxk": {"type": "string", "description": "QXP"}}
        schema = {"type": "object", "properties": properties}
        self.tools = tuple(Tool(name, "QXD", schema) for name in self._names) if tools else ()

    def digest(self) -> bytes:
        """What is the same for conversations of the same kind alone."""
        kind = msgspec.msgpack.encode((self.messages, self._offers, self.generation))
        return hashlib.blake2b(kind, digest_size=16).digest()

    def first(self, turns: int) -> "Skeleton":
        """The skeleton of the first turns."""
        return Skeleton(self.messages[:turns], tools=self._offers, generation=self.generation)

    def has(self, word: str) -> bool:
        return word in (*self._opening, *self._said) or any(word in pair for pair in self._results)

    def missing(self, text: str, *, in_turn: bool) -> str | None:
        """The first word that is not in the text, or not behind those before it.

        Results may stand in another order than their calls where the text says whose they are, and if `in_turn`.
        """
        for word in self._opening:
            if word not in text:
                return word
        if lost := _first_lost(text, self._said):
            return lost
        results = [word for word, _ in self._results]
        as_called = [word for word, _ in sorted(self._results, key=lambda pair: int(pair[1][3:-1] or 0))]
        named = 1 + text.count(self._names[0])
        called = (call for _, call in self._results if call)
        told = all(text.count(_call_id(call)) > 1 or text.count(call) > named for call in called)
        lost = _first_lost(text, as_called)
        if lost and (not (told or in_turn) or _first_lost(text, results)):
            return lost
        for word, call in self._results:
            if call and text.rfind(word) < text.find(call):
                return word
        return None

    def _word(self) -> str:
        return f"QX{next(self._count)}Z"

    def _message(self, message: Message) -> Message:
        self._turns = self._turns or message.role not in SYSTEM
        # Templates write the text of a turn before its calls, wherever it stood.
        parts = list(message.parts)
        for calls in (False, True):
            for place, part in enumerate(message.parts):
                if isinstance(part, ToolCall) == calls:
                    parts[place] = (
                        self._call(part) if isinstance(part, ToolCall) else self._part(part, message)
                    )
        name = message.name if message.role == "tool" else None
        return Message(message.role, tuple(parts), name and "qxname")

    def _part(self, part: Part, message: Message) -> Part:
        match part:
            case Text(text):
                if not text.strip():  # a template asks whether there is a text, and may write a blank one
                    return replace(part, text=text and " ")
                word = self._word()
                opens = message.role in SYSTEM and not self._turns
                (self._opening if opens else self._said).append(word)
                return replace(part, text=word)
            case Reasoning():
                return Reasoning("QXH")
            case ToolResult():
                said = [text for text in part.parts if isinstance(text, Text) and text.text.strip()]
                word = self._word() if said else ""
                if word:
                    self._results.append((word, self._calls.get(part.call_id, "")))
                id_ = self._calls.get(part.call_id, "qxorphan")
                return ToolResult(_call_id(id_), (Text(word),) if word else (), part.name and id_)
            case _:  # media: a word shows that their turn is written
                word = self._word()
                self._said.append(word)
                return Text(word)

    def _call(self, call: ToolCall) -> ToolCall:
        word = self._word()
        name = self._calls[call.id] = f"qxf{word[2:-1]}z"
        self._names.append(name)
        self._said += [name, word]
        return ToolCall(_call_id(name), name, f'{{"qxk": "{word}"}}')


def _first_lost(text: str, words: list[str]) -> str | None:
    """The first of the words that is not in the text, or not behind those before it."""
    place = 0
    for word in words:
        place = text.find(word, place)
        if place < 0:
            return word
    return None


def _call_id(name: str) -> str:
    return f"call{name[2:]:0>5}"


def _combinations(messages: Conversation) -> Iterator[tuple[Form, ...]]:
    """Each change that makes a difference to the conversation, then several of them."""
    useful = [form for form in FORMS if form(messages) != messages]
    most = MOST_FORMS if len(messages) <= LONG else 1
    late = [(late_system_in_turn,)] if late_system_in_turn(messages) != messages else []
    for last in ((), (calls_as_text,)):
        for size in range(min(len(useful), most) + 1):
            for forms in itertools.combinations(useful, size):
                yield from ((*first, *forms, *last) for first in (*late, ()))


def _changed(messages: Conversation, forms: tuple[Form, ...]) -> Conversation:
    for form in forms:
        messages = form(messages)
    return messages


def _opening(messages: Conversation) -> int:
    """How many messages of the system the conversation begins with."""
    return next((n for n, message in enumerate(messages) if message.role not in SYSTEM), len(messages))


def _said(messages: Conversation) -> tuple[Part, ...]:
    """The parts of all messages, each of which begins a paragraph."""
    return reduce(partial(seamed, seam=PARAGRAPH), (message.parts for message in messages), ())


def _marked(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """What the system says, marked as Claude Code marks its own reminders."""
    return seamed(seamed((Text("<system-reminder>"),), parts, "\n"), (Text("</system-reminder>"),), "\n")


def _with_end(message: Message, parts: tuple[Part, ...]) -> Message:
    """The message with more parts at the end of its text or of its last result."""
    if not _has_result(message):
        return replace(message, parts=seamed(message.parts, parts, PARAGRAPH))
    *before, result = message.parts
    assert isinstance(result, ToolResult)
    return replace(message, parts=(*before, replace(result, parts=seamed(result.parts, parts, PARAGRAPH))))


def _results_after(messages: Conversation, index: int) -> dict[str, ToolResult]:
    """The results that follow a turn with calls, up to the assistant's next turn. Clients use ids again."""
    found: dict[str, ToolResult] = {}
    for place in range(index + 1, len(messages)):
        if messages[place].role == "assistant":
            break
        found |= {part.call_id: part for part in messages[place].parts if isinstance(part, ToolResult)}
    return found


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


def _has_result(message: Message) -> bool:
    return bool(message.parts) and isinstance(message.parts[-1], ToolResult)


def _asks(message: Message) -> bool:
    return message.role == "user" and not all(isinstance(part, ToolResult) for part in message.parts)


def _only(message: Message, kind: type[Part]) -> bool:
    return bool(message.parts) and all(isinstance(part, kind) for part in message.parts)


def _says_something(part: Part) -> bool:
    return not isinstance(part, Text | Reasoning) or bool(part.text.strip())


def _results_apart(messages: Conversation) -> Conversation:
    """Results in turns of their own, before what the user says in the same turn."""
    apart: list[Message] = []
    for message in messages:
        results = tuple(part for part in message.parts if isinstance(part, ToolResult))
        rest = tuple(part for part in message.parts if not isinstance(part, ToolResult))
        apart += [replace(message, parts=parts) for parts in (results, rest) if parts] or [message]
    return tuple(apart)


def _as_text(part: Part) -> tuple[Part, ...]:
    match part:
        case ToolResult(_, parts):
            text = "\n".join(each.text for each in parts if isinstance(each, Text))
            media = (each for each in parts if not isinstance(each, Text))
            return Text(f"<tool_response>\n{text}\n</tool_response>", apart=True), *media
        case ToolCall(_, name, arguments):
            written = f'{{"name": "{name}", "arguments": {arguments or "{}"}}}'
            return (Text(f"<tool_call>\n{written}\n</tool_call>", apart=True),)
        case _:
            return (part,)


def _by_role(message: Message, parts: tuple[Part, ...]) -> list[Message]:
    """The parts of a tool's turn: results stay the tool's, texts become the user's."""
    turns: list[Message] = []
    for part in parts:
        role = "tool" if isinstance(part, ToolResult) and message.role == "tool" else "user"
        if turns and turns[-1].role == role:
            turns[-1] = replace(turns[-1], parts=(*turns[-1].parts, part))
        else:
            turns.append(replace(message, role=role, parts=(part,)))
    return turns


MOST_SEARCHED: Final = 32
"""How often the prompt is searched for texts that are not in their order. Then the rest counts as found."""

HEAD: Final = 64  # characters of a text by which its place is found


class Proof:
    """What of a conversation is in a prompt."""

    def __init__(self, prompt: str, switches: re.Pattern[str] | None) -> None:
        """`switches` are words that the template takes out of what users and the system say, to act on them."""
        self.switched: list[int] = []  # messages with such words
        self._prompt, self._switches = prompt, switches
        self._left = MOST_SEARCHED * len(prompt)  # characters that may still be searched in vain
        # Systems, speakers, calls and results: templates have places or notations of their own for each.
        self._tracks = [_Track(), _Track(), _Track(), _Track()]

    def lost(self, messages: tuple[Message, ...]) -> int | None:
        """The index of the first message of which a part is not in the prompt."""
        for index, message in enumerate(messages):
            if not all(self._has_part(part, message.role, index) for part in message.parts):
                return index
        return None

    def _has_part(self, part: Part, role: str, index: int) -> bool:
        systems, speakers, calls, results = self._tracks
        match part:
            case Text(text) if role == "assistant":
                return self._has(without_thought(text), speakers)
            case Text(text):
                track = systems if role in ("system", "developer") else speakers
                return self._has(text, track) or self._has_switched(text, track, index)
            case ToolCall(_, name, arguments):
                said = (name, *_texts(parsed_arguments(arguments)))
                return all(self._has(text, calls) for text in said)
            case ToolResult(_, parts):
                return all(
                    self._has(text.text, results) or self._has_value(text.text, results)
                    for text in parts
                    if isinstance(text, Text)
                )
            case _:  # whoever places media counts them
                return True

    def _has_switched(self, text: str, track: "_Track", index: int) -> bool:
        if self._switches is None or not self._switches.search(text):
            return False
        self.switched.append(index)
        return all(self._has(piece, track) for piece in self._switches.split(text))

    def _has_value(self, text: str, track: "_Track") -> bool:
        """Whether all texts of a JSON value are there, which a template may write in its own notation."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return all(self._has(inner, track) for inner in _texts(value))

    def _has(self, text: str, track: "_Track") -> bool:
        # As shielding leaves them.
        text = text.strip().replace(BREAK, "\ufffd").replace(NAME, "\ufffd")
        if self._left < 0:
            return True
        for _ in range(len(_NOTATIONS)):
            written = _NOTATIONS[track.notation](text)
            # A long text is compared much faster than it is searched for.
            place = self._prompt.find(written[:HEAD], track.place)
            if not self._prompt.startswith(written, place):
                place = self._prompt.find(written, track.place)
            if place >= 0:
                track.place = place + len(written)
                return True
            self._left -= len(self._prompt) - track.place
            track.notation = (track.notation + 1) % len(_NOTATIONS)
        self._left -= track.place
        anywhere = any(notation(text) in self._prompt for notation in _NOTATIONS)
        return anywhere or _squeezed(text) in self._squeezed

    @cached_property
    def _squeezed(self) -> str:
        return _squeezed(self._prompt)


class _Track:
    """How far what one kind of author said was found, and in which notation last."""

    def __init__(self) -> None:
        self.place = self.notation = 0


_NOTATIONS: Final = (
    lambda text: text,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: repr(text)[1:-1],
)
"""How templates write a text: as it is, in JSON, in ASCII, in Python's notation."""


def _squeezed(text: str) -> str:
    """The text without white space, which templates may write otherwise."""
    return "".join(text.split())


def _texts(value: Any) -> Iterator[str]:
    """The texts of a JSON value, in their order."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case dict() as fields:
                waiting += [each for pair in reversed(fields.items()) for each in reversed(pair)]
            case list() as items:
                waiting += reversed(items)
            case _:
                pass
