"""Bundled prompts that offer tools: how many calls can be read, keep their schema, and are finished."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import yaml
from jsonschema_rs import is_valid
from msgspec import Struct

from pippin.core.completion import Completion, object_of
from pippin.core.conversation import Message, Text, Tool
from pippin.core.requests import GenerationRequest
from pippin.core.verification import Finding
from pippin.engines.verify.asking import Progress, Served, ignored
from pippin.engines.verify.findings import data, finding
from pippin.engines.verify.template import THINKS
from pippin.output import formats

ANSWER_TOKENS: Final = {False: 128, True: 1536}
"""The most of an answer, by whether the model thinks before it. Calls of the bundled tools take less than 100."""
FEW: Final = 0.9
MANY_LOST: Final = 3


class Prompt(Struct, frozen=True):
    """A question, the tools that it offers, and the one that answers it; None where no tool does."""

    ask: str
    tools: tuple[Tool, ...]
    calls: str | None


class Counts(Struct, frozen=True):
    """How many answers there are, how many should call a tool, and what the answers are, see `look`."""

    asked: int
    wanted: int
    most: int  # tokens of an answer
    looks: "Counter[str]"

    @property
    def figures(self) -> dict[str, Any]:
        looks, tried = self.looks, self.looks["tried"]
        return {
            "answers": self.asked,
            "that try a call": f"{tried}, of {self.wanted} where a tool helps",
            "calls that can be read": _share(looks["parsed"], tried),
            "calls that keep the schema": _share(looks["valid"], tried),
            "the right tool": _share(looks["right"], self.wanted),
            "answers that are finished": _share(looks["finished"], self.asked),
            "thoughts that are closed": _share(self.asked - looks["open"], self.asked),
        }


@cache
def prompts() -> tuple[Prompt, ...]:
    """The bundled prompts."""
    found = yaml.safe_load(data("tools.yaml"))
    tools = {
        name: Tool(name, each["description"], each["parameters"]) for name, each in found["tools"].items()
    }
    return tuple(
        Prompt(each["ask"], tuple(tools[name] for name in each["tools"]), each.get("calls"))
        for each in found["prompts"]
    )


def measure(served: Served, progress: Progress = ignored) -> Counts:
    """Answer all prompts."""
    most = ANSWER_TOKENS[served.preparer.info.capabilities.reasoning]
    asked = [
        GenerationRequest(
            model="verify",
            messages=(Message("user", (Text(prompt.ask),)),),
            tools=prompt.tools,
            max_tokens=most,
        )
        for prompt in prompts()
    ]
    name = served.preparer.info.tool_format
    openers = formats.tool_format(name).openers if name else ("<tool_call>",)
    looks: Counter[str] = Counter()
    for prompt, answer in zip(prompts(), served.ask_all(asked, progress), strict=True):
        looks.update(() if answer is None else look(prompt, answer, openers))
    return Counts(len(asked), sum(prompt.calls is not None for prompt in prompts()), most, looks)


def check(counts: Counts, other: Counts | None) -> Iterator[Finding]:
    """Judge the counts."""
    looks, tried = counts.looks, counts.looks["tried"]
    if not tried:
        yield finding("no-calls", count=counts.asked)
    judged = (
        ("parsed", tried, "calls can be read"),
        ("valid", tried, "calls keep their schema"),
        ("right", counts.wanted, "prompts get their tool"),
    )
    few = [f"{looks[kind]} of {whole} {what}" for kind, whole, what in judged if looks[kind] < FEW * whole]
    if tried and few:
        yield finding("calls", few=few)
    unfinished = counts.asked - looks["finished"]
    if unfinished > (1 - FEW) * counts.asked:
        yield finding("unfinished", count=unfinished, all=counts.asked, most=counts.most)
    if looks["open"] > (1 - FEW) * counts.asked:
        yield finding("thoughts-open", count=looks["open"], all=counts.asked)
    if other is not None and looks["right"] + MANY_LOST < other.looks["right"]:
        yield finding("calls-lost", count=looks["right"], other=other.looks["right"])


def look(prompt: Prompt, answer: Completion, openers: tuple[str, ...]) -> list[str]:
    """What an answer is: `tried` to call; all calls `parsed`, `valid` by their schemas, and `right`; `finished`; and
    `open`, if it ends in a thought, or in text whose last mark begins one."""
    choice = answer.choices[0]
    calls = [part for part in choice.parts if part.kind == "tool_call"]
    schemas = {tool.name: {**(tool.parameters or {}), "additionalProperties": False} for tool in prompt.tools}
    said = [(part.name or "", object_of(part.text)) for part in calls]
    parsed = bool(said) and all(arguments is not None for _, arguments in said)
    valid = parsed and all(name in schemas and is_valid(schemas[name], arguments) for name, arguments in said)
    marks = THINKS.findall(choice.text("text")) or ["/"]
    finished = choice.finished.reason != "length"
    found = {
        "tried": bool(calls) or any(opener in choice.text("text") for opener in openers),
        "parsed": parsed,
        "valid": valid,
        "right": valid and prompt.calls in dict(said),
        "finished": finished,
        "open": any(part.kind == "reasoning" for part in choice.parts[-1:]) or "/" not in marks[-1],
    }
    return [name for name, holds in found.items() if holds]


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None
