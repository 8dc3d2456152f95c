"""Schedules: what arrives when, what is done to the engine meanwhile, and how the engine is set up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from pippin.core.requests import JsonSchema, OutputFormat, Regex, Sampling
from pippin.output.formats import reasoning_format
from pippin.output.reasoning_formats import ReasoningFormat

Before = Literal[None, "clear", "wipe", "restart"]
Trunk = tuple[int, ...]
TRUNKS: list[Trunk] = [tuple((seed * 31 + place * 7) % 250 for place in range(90)) for seed in range(3)]
PHRASE = tuple(place * 17 % 240 for place in range(9))


@dataclass(frozen=True)
class Manner:
    """How a request wants its tokens chosen and read."""

    sampling: Sampling = Sampling(temperature=0)  # noqa: RUF009 - frozen
    wanted: OutputFormat | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    stops: tuple[str, ...] = ()
    eos: frozenset[int] = frozenset()
    thinking: ReasoningFormat | None = None
    budget: int | None = None


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
MANNERS: dict[str, Manner] = {
    "greedy": Manner(),
    "drawn": Manner(Sampling(temperature=1.0, top_p=0.9)),
    "narrow": Manner(Sampling(temperature=0.8, top_k=12, min_p=0.02)),
    "penalised": Manner(Sampling(temperature=0.7, repetition_penalty=1.3, top_k=40)),
    "greedy penalised": Manner(Sampling(temperature=0, frequency_penalty=0.6, presence_penalty=0.2)),
    "biased": Manner(
        Sampling(temperature=1.2, logit_bias={65: 3.0, 66: -50.0}, xtc_probability=0.5, xtc_threshold=0.05)
    ),
    "scored": Manner(logprobs=2),
    "drawn and scored": Manner(Sampling(temperature=1.0, typical_p=0.8), logprobs=0),
    "prompt scored": Manner(prompt_logprobs=1),
    "schema": Manner(wanted=JsonSchema(SCHEMA), eos=frozenset({256})),
    "drawn by a pattern": Manner(
        Sampling(temperature=1.0), wanted=Regex("([a-f]{2,5} ){1,6}"), eos=frozenset({256}), logprobs=1
    ),
    "thinking": Manner(
        Sampling(temperature=1.0), Regex("[0-9]{2,6}"), thinking=reasoning_format("think"), budget=6
    ),
    "ended by tokens": Manner(Sampling(temperature=1.0), eos=frozenset(range(0, 256, 5)), min_tokens=3),
    "stopped": Manner(Sampling(temperature=1.0), stops=("a", "xy", "\n")),
}


@dataclass(frozen=True)
class Ask:
    """One request, and what happens before it arrives or to it."""

    follows: bool = False  # its prompt begins with the last answered one and the answer
    trunk: int = 0
    count: int = 40  # tokens of the trunk
    tail: tuple[int, ...] = ()
    tokens: int = 24
    choices: int = 1
    manner: str = "greedy"
    gap: int | None = None  # steps before the next arrives; None: it comes when all is done
    cancel: int | None = None  # steps after which it is cancelled
    priority: int = 0
    adapter: str | None = None
    salt: int = 0
    pinned: bool = False
    seed: int = 0
    before: Before = None

    @property
    def prompt(self) -> tuple[int, ...]:
        return TRUNKS[self.trunk][: self.count] + self.tail


@dataclass(frozen=True)
class World:
    """The engine of a schedule."""

    chunk: int = 16
    preempt_every: int = 0  # steps, 0 for only where memory asks for it
    room: int | None = None  # blocks for which rows have memory
    tree: int | None = None  # blocks that the prefix cache holds
    disk: bool = False
    interval: int = 1
    overlaps: bool = True
    proposals: Literal[None, "prompt_lookup", "draft", "head", "known"] = None
    adapted: bool = False
    kv_bits: int | None = None
    prefixes: bool = True
    pieces: bool = False  # attention is cut wherever lengths differ

    @property
    def exact(self) -> bool:
        """Quantised keys and values depend on what was computed when: a prompt is computed without."""
        return self.kv_bits is None or not (self.prefixes or self.preempt_every or self.room)


Schedule = tuple[World, list[Ask]]

COMES_BACK: Schedule = World(disk=True), [Ask(), Ask(follows=True, tail=(1, 2, 3), before="restart")]
CROWDED: Schedule = (
    World(preempt_every=5, tree=3),
    [Ask(trunk=place % 3, tail=(place,), gap=1) for place in range(6)],
)
KNOWN: Schedule = World(proposals="known"), [Ask()]
"""Schedules in which things happen for sure: hits of memory and disk; preemption and eviction; proposals of which some
are accepted."""
_TAIL = tuple(range(0, 137, 17)) * 2
LOOKED_BACK: Schedule = (
    World(chunk=1, preempt_every=5, tree=4, proposals="prompt_lookup"),
    [
        Ask(follows=True, count=76, tail=(96, 238), tokens=60, gap=25, salt=1, pinned=True, seed=2),
        Ask(
            follows=True,
            trunk=2,
            count=66,
            tail=(8, 133, 222, 177, 146, 118, 181, 57, 31, 119, 49, 217),
            tokens=0,
            gap=25,
            priority=1,
            seed=4,
        ),
        Ask(trunk=1, count=22, tail=_TAIL, tokens=19, gap=None, priority=1, salt=1, seed=4, before="wipe"),
    ],
)
"""A row is preempted before it has passed a block's border, whose window was dropped from the cache: of a window there
is nothing before what its row began with."""
DRAFTED: Schedule = (
    World(chunk=5, preempt_every=5, tree=4, proposals="head"),
    [
        Ask(count=72, tail=PHRASE, tokens=24, choices=2, manner="drawn", gap=1),
        Ask(trunk=1, count=40, tokens=20, manner="schema", gap=0),
        Ask(follows=True, tail=(1, 2, 3), tokens=30, manner="scored", gap=3, cancel=9),
        Ask(count=72, tail=PHRASE, tokens=19, manner="stopped", gap=None),
    ],
)
"""Sequences of all sorts beside each other that a head drafts for, preempted and resumed."""
BY_A_MODEL: Schedule = replace(DRAFTED[0], proposals="draft"), DRAFTED[1]
FORETOLD: Schedule = (
    World(chunk=5, preempt_every=7, tree=4, proposals="draft"),
    [
        Ask(count=72, tail=PHRASE, tokens=40, choices=2, gap=1),
        Ask(trunk=1, count=40, tokens=60, gap=0),
        Ask(follows=True, tail=(1, 2, 3), tokens=30, gap=3, cancel=9),
        Ask(trunk=2, count=1, tokens=60, gap=None),
        Ask(count=72, tail=PHRASE, tokens=19, gap=None),
    ],
)
"""Greedy ones alone, of which a draft model with the model's own weights knows all, however it comes to read them."""
GREW: Schedule = (
    World(chunk=1, preempt_every=5, room=40, tree=20, interval=3, overlaps=False),
    [
        Ask(count=72, tail=PHRASE, tokens=60, gap=None, choices=2, seed=2),
        Ask(trunk=2, count=49, tail=PHRASE * 3, tokens=19, gap=25, choices=2, cancel=9, seed=2),
    ],
)
"""A row grows into another class of lengths while the next step is built and not started."""


def plan_of(draw: Random, manners: Sequence[str], adapters: Sequence[str | None]) -> list[Ask]:
    """Up to seven requests. In every other plan somebody comes back at the end, to what memory or the disk has."""
    plan = [_ask(draw, manners, adapters) for _ in range(draw.randint(1, 6))]
    if draw.random() < 0.5:
        last = plan[-1] = replace(plan[-1], gap=None, cancel=None)
        before: tuple[Before, ...] = (None, "clear", "restart")
        back = _ask(draw, manners, adapters)
        plan.append(
            replace(back, follows=True, before=draw.choice(before), adapter=last.adapter, salt=last.salt)
        )
    return plan


def _ask(draw: Random, manners: Sequence[str], adapters: Sequence[str | None]) -> Ask:
    befores: tuple[Before, ...] = (*[None] * 8, "clear", "wipe", "restart", "restart")
    tail = tuple(draw.randrange(256) for _ in range(draw.randint(0, 12)))
    return Ask(
        follows=draw.random() < 0.3,
        trunk=draw.choice((0, 0, 0, 1, 2)),
        count=draw.choice((draw.randint(1, 90), 40, 72, 90)),
        tail=draw.choice((tail, PHRASE * draw.randint(1, 3))),
        tokens=draw.choice((draw.randint(1, 24), draw.randint(0, 2), 60)),
        choices=draw.choice((1, 1, 1, 2, 3)),
        manner=draw.choice(("greedy", draw.choice(manners))),
        gap=draw.choice((0, 0, 1, 3, 25, None)),
        cancel=draw.choice((None, None, None, 0, 3, 9)),
        priority=draw.randint(0, 1),
        adapter=draw.choice(adapters),
        salt=draw.choice((0, 0, 0, 1)),
        pinned=draw.random() < 0.5,
        seed=draw.randint(0, 5),
        before=draw.choice(befores),
    )


def world_of(draw: Random, traits: Mapping[str, Any]) -> World:
    """With these traits, and the others by chance."""
    drawn = {
        "chunk": draw.choice((1, 5, 16, 64)),
        "preempt_every": draw.choice((0, 0, 5)),
        "room": draw.choice((None, None, 14, 40)),
        "tree": draw.choice((None, None, 4, 20)),
        "disk": draw.random() < 0.5,
        "interval": draw.choice((1, 1, 3)),
        "overlaps": draw.random() < 0.5,
        "pieces": draw.random() < 0.5,
    }
    return World(**{**drawn, **traits})
