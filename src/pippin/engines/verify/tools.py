"""Bundled prompts that offer tools: how many calls can be read, keep their schema, and are finished."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from pippin.core.completion import Completion, object_of
from pippin.core.conversation import Message, Text, Tool
from pippin.core.requests import GenerationRequest
from pippin.core.verification import Finding
from pippin.engines.verify.asking import Served
from pippin.engines.verify.files import note, warning

ANSWER_TOKENS: Final = 1024  # of an answer; more is a loop, or long thoughts
FEW: Final = 0.9
TYPES: Final = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


@dataclass(frozen=True)
class Prompt:
    """A question, the tools that it offers, and the one that answers it; None where no tool does."""

    ask: str
    tools: tuple[Tool, ...]
    calls: str | None


@dataclass(frozen=True)
class Counts:
    """Of the answers: those that should call, that try to, and of these that can be read, keep the schema, and call
    the right tool; those of all answers that are finished, and that close their thoughts."""

    asked: int
    wanted: int
    tried: int
    parsed: int
    valid: int
    right: int
    finished: int
    closed: int

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "answers": self.asked,
            "that try a call": f"{self.tried}, of {self.wanted} where a tool helps",
            "calls that can be read": share(self.parsed, self.tried),
            "calls that keep the schema": share(self.valid, self.tried),
            "the right tool": share(self.right, self.wanted),
            "answers that are finished": share(self.finished, self.asked),
            "thoughts that are closed": share(self.closed, self.asked),
        }


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


@cache
def prompts() -> tuple[Prompt, ...]:
    """The bundled prompts."""
    found = yaml.safe_load(resources.files(__package__).joinpath("data", "tools.yaml").read_text("utf-8"))
    tools = {
        name: Tool(name, each["description"], each["parameters"]) for name, each in found["tools"].items()
    }
    return tuple(
        Prompt(each["ask"], tuple(tools[name] for name in each["tools"]), each.get("calls"))
        for each in found["prompts"]
    )


def measure(served: Served) -> Counts:
    """Answer all prompts."""
    asked = [
        GenerationRequest(
            model="verify",
            messages=(Message("user", (Text(prompt.ask),)),),
            tools=prompt.tools,
            max_tokens=ANSWER_TOKENS,
        )
        for prompt in prompts()
    ]
    return counted(served.ask_all(asked), served)


def counted(answers: list[Completion | None], served: Served) -> Counts:
    openers = _openers(served)
    looks = [
        _look(prompt, answer, openers) for prompt, answer in zip(prompts(), answers, strict=True) if answer
    ]
    return Counts(
        asked=len(answers),
        wanted=sum(prompt.calls is not None for prompt in prompts()),
        tried=sum(look.tried for look in looks),
        parsed=sum(look.parsed for look in looks),
        valid=sum(look.valid for look in looks),
        right=sum(look.right for look in looks),
        finished=sum(look.finished for look in looks),
        closed=sum(look.closed for look in looks),
    )


def check(counts: Counts, other: Counts | None, *, offers_tools: bool) -> Iterator[Finding]:
    """Judge the counts. A model whose template offers no tools was not trained on them."""
    judge = warning if offers_tools else note
    if not counts.tried:
        yield judge(
            "no-calls",
            f"The model called no tool in {counts.asked} answers.",
            "Agents do nothing with it." if offers_tools else "Its template offers no tools.",
            "see the template's findings; a wrong --tool-call-parser does this too" if offers_tools else "",
        )
    for what, part, whole in (
        ("can be read", counts.parsed, counts.tried),
        ("keep their schema", counts.valid, counts.tried),
        ("are right", counts.right, counts.wanted),
    ):
        if counts.tried and whole and part < FEW * whole:
            yield judge(
                "calls",
                f"{part} of {whole} calls {what}.",
                "Agents fail at the rest. Small models do this by themselves; compare with the original.",
                "pippin verify MODEL --against ORIGINAL, or tool_choice required, which enforces the schema",
            )
    if counts.finished < FEW * counts.asked:
        yield judge(
            "unfinished",
            f"{counts.asked - counts.finished} of {counts.asked} answers were not finished in {ANSWER_TOKENS} tokens.",
            "The end of a turn is not learnt, or not recognised.",
            "see the findings on tokens",
        )
    if other is not None and counts.right + FEW * 4 < other.right:
        yield warning(
            "calls-lost",
            f"{counts.right} of {counts.wanted} calls are right; the other model makes {other.right}.",
            "The quantisation costs tool calls.",
            "pippin convert ORIGINAL --bits 6, --group-size 32 or --mixed 4-6",
        )


@dataclass(frozen=True)
class _Look:
    tried: bool
    parsed: bool
    valid: bool
    right: bool
    finished: bool
    closed: bool


def _look(prompt: Prompt, answer: Completion, openers: tuple[str, ...]) -> _Look:
    choice = answer.choices[0]
    calls = [part for part in choice.parts if part.kind == "tool_call"]
    text = choice.text("text")
    offered = {tool.name: tool.parameters or {} for tool in prompt.tools}
    arguments = [object_of(part.text) for part in calls]
    parsed = bool(calls) and None not in arguments
    fits = [
        part.name in offered and fitting(said, offered[part.name])
        for part, said in zip(calls, arguments, strict=True)
        if part.name is not None
    ]
    reason = None if choice.finished is None else choice.finished.reason
    ended = reason not in (None, "length")
    return _Look(
        tried=bool(calls) or any(opener in text for opener in openers),
        parsed=parsed,
        valid=parsed and all(fits),
        right=parsed and all(fits) and prompt.calls in {part.name for part in calls},
        finished=ended,
        closed=ended or not choice.parts or choice.parts[-1].kind != "reasoning",
    )


def fitting(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value keeps a schema of the keywords that the bundled tools use."""
    kind = TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return all(fitting(each, schema.get("items", {})) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        whole = all(name in value for name in schema.get("required", ()))
        return whole and all(name in known and fitting(each, known[name]) for name, each in value.items())
    return True


def _openers(served: Served) -> tuple[str, ...]:
    """What begins a call in the model's format, for calls that could not be read and became text."""
    from pippin.output import formats

    name = served.preparer.info.tool_format
    return formats.tool_format(name).openers if name else ("<tool_call>",)
