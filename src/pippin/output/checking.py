"""Checks finished answers and calls against the whole schema that they were to keep to, and says where they do not; and
running ones for blocks of tokens and calls that they repeat without end.

A grammar leaves out what it can't enforce of a schema that is not strict, and nothing holds a call that the model was
free to make. A client may send any schema, so a check that could take long is not made.
"""

import contextlib
import itertools
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from pippin.core.conversation import Text, Tool, ToolCall, ToolResult
from pippin.core.decoding import from_json
from pippin.core.events import Event, FinishReason, PartDelta, PartEnded, PartStarted
from pippin.core.requests import GenerationRequest, JsonSchema, OutputFormat
from pippin.output.schemas import resolve

# Within these bounds a check takes some 20 ms at most, for which all answers of the model wait.
LONGEST_TEXT: Final = 1 << 17  # characters of JSON that are checked
LARGEST_SCHEMA: Final = 1 << 16  # bytes of its JSON, all of which is compiled
LARGEST_WITH_PATTERNS: Final = 1 << 11
MOST_VALUES: Final = 10_000  # inside of one JSON text
MOST_PARTS: Final = 500  # of a schema with its references followed
MOST_STEPS: Final = 20_000  # values times parts
MOST_MATCHED: Final = 100_000  # characters times patterns that they are matched with
BACKTRACKED: Final = 50  # characters in which a pattern that looks around takes as long as one that does not
MOST_BACKTRACKS: Final = 500
LARGEST_PATTERN: Final = 1 << 15  # bytes, compiled
LONGEST_REASON: Final = 200  # characters
MOST_COMPILED: Final = 128  # schemas that are kept compiled

_LOOKS_AROUND: Final = re.compile(r"\(\?<?[=!]|\\[1-9k]")
_UNUSABLE: Final = (ValueError, TypeError, AttributeError)
"""Raised for a schema that is none, or refers to others."""
_UNBOUNDED: Final = {"$dynamicRef", "$recursiveRef"}


class AnswerCheck:
    """The check of one choice, against the schemas of its answer and of the offered tools."""

    def __init__(self, wanted: OutputFormat | None, tools: tuple[Tool, ...]) -> None:
        """The choice was to be of the format `wanted`, or to call one of the `tools`."""
        # A strict schema needs no check: the grammar enforces all of it.
        self._answer = wanted if isinstance(wanted, JsonSchema) and not wanted.strict else None
        self._tools = {tool.name: tool.parameters for tool in tools}
        self._parts: list[tuple[PartStarted, list[str]]] = []

    def see(self, events: Iterable[Event]) -> None:
        """Take note of events of the choice."""
        if self._answer is None and not self._tools:
            return
        for event in events:
            if type(event) is PartDelta:
                self._parts[-1][1].append(event.text)
            elif type(event) is PartStarted:
                self._parts.append((event, []))
            elif type(event) is PartEnded and event.thought:
                self._parts.pop()

    def warnings(self, reason: FinishReason | None) -> tuple[str, ...]:
        """What is wrong with the choice that ended for this reason, a sentence for each fault."""
        if reason not in ("stop", "tool_calls"):
            return ()
        found = []
        for part, pieces in self._parts:
            schema = self._tools.get(part.name or "")
            if part.kind == "tool_call" and schema and (fault := fault_of(schema, "".join(pieces))):
                found.append(f"The call of '{part.name}' does not keep to the tool's schema{fault}.")
        text = "".join("".join(pieces) for part, pieces in self._parts if part.kind == "text")
        called = any(part.kind == "tool_call" for part, _ in self._parts)
        if self._answer is not None and not called and (fault := fault_of(self._answer.schema, text)):
            found.append(f"The answer does not keep to the schema{fault}.")
        return tuple(found)


def prepare(wanted: OutputFormat | None, tools: tuple[Tool, ...]) -> None:
    """Import and compile what the check of a choice needs, which takes tens of milliseconds: call it where no step
    waits."""
    schemas = [wanted.schema] if isinstance(wanted, JsonSchema) else []
    for schema in (*schemas, *(tool.parameters for tool in tools)):
        written = msgspec.json.encode(schema)
        if _is_small(written):
            with contextlib.suppress(*_UNUSABLE):
                _validator(written)


def fault_of(schema: Any, text: str) -> str | None:
    """The first fault of a JSON text, as the end of a sentence; None if it has none, or can't be checked soon."""
    if len(text) > LONGEST_TEXT:
        return None
    try:
        value = from_json(text)
    except (msgspec.MsgspecError, RecursionError):
        return ": it is no JSON"
    try:
        return _first_fault(schema, value) if _is_quick(schema, value, len(text)) else None
    except _UNUSABLE:
        return None


@lru_cache(MOST_COMPILED)
def _validator(written: bytes) -> Any:
    """The validator of a schema, which is given as its JSON."""
    import jsonschema_rs

    options = jsonschema_rs.FancyRegexOptions(MOST_BACKTRACKS, LARGEST_PATTERN, LARGEST_PATTERN)
    return jsonschema_rs.validator_for(from_json(written), offline=True, pattern_options=options)


def _first_fault(schema: Any, value: Any) -> str | None:
    import jsonschema_rs

    check = _validator(msgspec.json.encode(schema))
    kinds = jsonschema_rs.ValidationErrorKind
    try:
        check.validate(value)  # up to the first fault; `iter_errors` finds all of them beforehand
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, (kinds.BacktrackLimitExceeded, kinds.RegexEngineFailure)):
            return None
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        place, reason = "".join(steps).removeprefix("."), error.message
        reason = reason if len(reason) <= LONGEST_REASON else "…" + reason[-LONGEST_REASON:]
        return (f" at '{place}'" if place else "") + f": {reason}"
    return None


def _is_small(written: bytes) -> bool:
    return len(written) <= (LARGEST_WITH_PATTERNS if b'"pattern' in written else LARGEST_SCHEMA)


def _is_quick(schema: Any, value: Any, length: int) -> bool:
    """Whether a check of a value takes few steps: an upper bound, as if each part of the schema applied to all that is
    inside of the value."""
    if not _is_small(msgspec.json.encode(schema)):
        return False
    parts = list(itertools.islice(_parts(schema), MOST_PARTS + 1))
    values = sum(1 for _ in itertools.islice(_values(value), MOST_VALUES + 1))
    steps = values * sum(1 + len(node.get("enum", ())) for node in parts)
    matched = length * sum(_matching(node, length) for node in parts)
    few = len(parts) <= MOST_PARTS and values <= MOST_VALUES
    return few and steps <= MOST_STEPS and matched <= MOST_MATCHED


def _matching(node: dict[str, Any], length: int) -> int:
    """How often all characters of a text of this length may be looked at by the patterns of a part of a schema."""
    patterns = [node["pattern"]] if "pattern" in node else []
    patterns += node.get("patternProperties", ())
    return sum(1 + length // BACKTRACKED if _LOOKS_AROUND.search(pattern) else 1 for pattern in patterns)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The objects inside of a schema, with those that references name: without end if one refers to itself. Raises
    `ValueError` for references that can't be followed."""
    waiting = [schema]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, list):
            waiting += inner
        elif isinstance(inner, dict):
            if _UNBOUNDED & inner.keys() or ("$id" in inner and inner is not schema):
                raise ValueError
            yield inner
            further = [held for keyword, held in inner.items() if keyword not in ("$defs", "definitions")]
            if "$ref" in inner:
                further.append(resolve(inner["$ref"], schema))
            # What is not evaluated is found by evaluating all the rest once more.
            waiting += further * (2 if {"unevaluatedItems", "unevaluatedProperties"} & inner.keys() else 1)


def _values(value: Any) -> Iterator[Any]:
    """All values inside of one, and the names of fields."""
    waiting = [value]
    while waiting:
        held = waiting.pop()
        yield held
        if isinstance(held, dict):
            waiting += [*held.values(), *held]
        elif isinstance(held, list):
            waiting += held


# A period is a run of tokens that the end of an answer consists of, several times over. Sound answers repeat too:
# tables, test data, zeros, a word that somebody wants a hundred times. So a period that says something must come three
# times and for `LEAST` tokens more, one that says little for `LITTLE` tokens, and each oftener than any number that the
# user named.
LOOK_EVERY: Final = 32  # tokens
LONGEST: Final = 4096  # tokens of a period
SAME: Final = 16  # tokens that are looked for earlier in the text
MOST_PLACES: Final = 4  # where they are found, the last ones

REPETITIONS: Final = 3
LEAST: Final = 96  # tokens beyond those
WORDS: Final = 4  # different ones, in a period that says something
LITTLE: Final = 4096  # tokens of a loop whose period says little, or what the user said
CALLS: Final = 4  # of a tool, with the same arguments
RESULTS: Final = 3  # of such calls, which are the same
LAST_CALLS: Final = 12  # among which they are looked for

# Scripts without spaces between words: each character counts as one.
_UNSPACED: Final = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD: Final = re.compile(rf"(?<![^\W_])[^\W\d_{_UNSPACED}]{{2,}}+(?!\d)|[{_UNSPACED}]")
_GROUPED: Final = re.compile(r"(?<=\d)[,.' ](?=\d{3}(?!\d))")
# A number above 100 counts what follows it; others are years, ports and codes.
_NUMBER: Final = re.compile(
    r"(?<!\d)(?:\d{1,2}|100)(?!\d)"
    rf"|(?<!\d)(?!19\d\d|20(?!00)\d\d)\d{{3,4}}(?=x\b|\s+[^\W\d_]|[{_UNSPACED}])"
)
_MANY: Final = re.compile(
    r"\b(?:ten|twelve|dozens?|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousand)\b|[百千]",
    re.IGNORECASE,
)
SHORT: Final = 2000  # characters of a message whose words and numbers count: in a longer one they are data
MOST_NAMED: Final = 100
TOKENS_OF_ONE: Final = 4  # of the things that a number in the message may count


def period_of(tokens: list[int]) -> int:
    """The length of the shortest period that makes up the end of `tokens` three times and for `LEAST` tokens more; 0 if
    there is none."""
    # Bytes are searched many times as fast as lists: in a table, each second token may be the same.
    recent = array("q", tokens[-LONGEST - SAME :])
    size, text = recent.itemsize, recent.tobytes()
    tail, end = text[-SAME * size :], len(text)
    for _ in range(MOST_PLACES):
        aligned = False
        while not aligned:
            place = text.rfind(tail, 0, end - 1)
            if place < 0:
                return 0
            end, aligned = place + len(tail), place % size == 0
        period = (len(text) - end) // size
        length = REPETITIONS * period + LEAST
        if len(tokens) >= length and tokens[-length:-period] == tokens[period - length :]:
            return period
    return 0


class Loops:
    """Watches one choice. `over`: it must end; `warnings` says why, or what was found."""

    def __init__(self, request: GenerationRequest) -> None:
        self.watches = request.loop_guard in ("warn", "stop") and not request.ignore_eos
        self.over = False
        self.warnings: tuple[str, ...] = ()
        self._stops = request.loop_guard == "stop"
        said = _last_said(request) if self.watches else ""
        self._said = _words(said)
        numbers = map(int, _NUMBER.findall(_GROUPED.sub("", said)))
        # The largest number of things that the text may ask for.
        self._named = max(MOST_NAMED if _MANY.search(said) else 0, *numbers, 0)
        self._calls: Counter[tuple[str | None, str]] = Counter()
        self._call: tuple[str | None, str] | None = None  # the one that is being read

    def look(self, tokens: list[int], text_of: Callable[[list[int]], str]) -> None:
        """Look at all tokens so far, after every `LOOK_EVERY`."""
        if self.warnings or not (period := period_of(tokens)):
            return
        length = self._most(text_of(tokens[-period:]), period)
        if len(tokens) >= length and tokens[-length:-period] == tokens[period - length :]:
            self._found(f"The answer repeats {period} token{'s' * (period > 1)}")

    def read(self, events: Iterable[Event]) -> None:
        """Count the calls that these events of the choice end."""
        for event in events:
            if type(event) is PartStarted and event.kind == "tool_call":
                self._call = event.name, ""
            elif type(event) is PartDelta and self._call is not None:
                self._call = self._call[0], self._call[1] + event.text
            elif type(event) is PartEnded and self._call is not None:
                call, self._call = (self._call[0], _canonical(self._call[1])), None
                self._calls[call] += 1
                if self._calls[call] >= max(CALLS, self._named + 1) and not self.warnings:
                    self._found(f"The answer calls `{call[0]}` with the same arguments")

    def _most(self, text: str, period: int) -> int:
        """The tokens that repetitions of a period with this text fill at least if they are a loop."""
        words = _words(text)
        if text.strip() and (len(words) < WORDS or words <= self._said):
            return max(LITTLE, (self._named + 1) * period)
        # A large number is rather one of words that an answer should have.
        return max(
            REPETITIONS * period,
            (min(self._named, MOST_NAMED) + 1) * period,
            min(TOKENS_OF_ONE * self._named, LITTLE),
        )

    def _found(self, what: str) -> None:
        self.over = self._stops
        told = "so it was ended here" if self._stops else "and was not ended"
        self.warnings = (f"{what} again and again, {told}: see `loop_guard`.",)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _canonical(arguments: str) -> str:
    """The arguments of a call without what means nothing in JSON: whitespace, the order of names."""
    try:
        return msgspec.json.encode(from_json(arguments), order="sorted").decode()
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _last_said(request: GenerationRequest) -> str:
    """The last text of the user's, or the end of a raw prompt; nothing if it is long."""
    if request.messages is None:
        return request.prompt[-SHORT:] if isinstance(request.prompt, str) else ""
    for message in reversed(request.messages):
        text = "".join(part.text for part in message.parts if isinstance(part, Text))
        if message.role == "user" and text:
            return text if len(text) <= SHORT else ""
    return ""


def repeated_calls(request: GenerationRequest) -> tuple[str, ...]:
    """Warns of a call that a conversation ends with, and has with the same arguments and the same result several times
    among its last ones, others between them or not."""
    if request.loop_guard not in ("warn", "stop"):
        return ()
    messages = request.messages or ()
    results = {
        part.call_id: part.parts
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResult)
    }
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
    told = [(call.name, _canonical(call.arguments), results.get(call.id)) for call in calls[-LAST_CALLS:]]
    if not told or told[-1][2] is None or (count := told.count(told[-1])) < RESULTS:
        return ()
    return (
        f"The conversation ends with {count} calls of `{told[-1][0]}` with the same arguments and the same result.",
    )
