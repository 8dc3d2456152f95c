"""What clients do in a benchmark: each scenario gives every client its conversation, turn by turn."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]
Body = dict[str, Any]

WORDS = (
    "river mountain engine letter window garden market signal station history paper music winter "
    "travel number kitchen forest bridge captain doctor island machine picture question season table "
    "village weather yellow ancient bright careful distant early famous gentle hidden important"
).split()


CELL = 1000  # clients of another cell have numbers of their own, so that no cell finds another's prompts in a cache


def text(words: int, seed: int) -> str:
    """Plain words, about one token each, the same for the same seed."""
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(words))


@dataclass(frozen=True)
class Turn:
    """One request of a client: what it adds to its conversation, and how much it wants back."""

    message: Message
    max_tokens: int
    delay: float = 0.0  # seconds to wait before it is sent
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    turns: Callable[[int], Iterator[Turn]]  # of client number i
    system: Callable[[int], str | None] = lambda client: None


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def _short(client: int) -> Iterator[Turn]:
    yield Turn(user(f"Number {client}. Write a long story about the {WORDS[client % len(WORDS)]}."), 64)


def _long(client: int) -> Iterator[Turn]:
    yield Turn(user(f"Summary number {client} of: {text(1500, 1000 + client)}"), 16)


def _medium(client: int) -> Iterator[Turn]:
    yield Turn(user(f"Summary number {client} of: {text(460, 3000 + client)}"), 16)


def _shared(client: int) -> Iterator[Turn]:
    yield Turn(user(f"Number {client}. Tell me about the {WORDS[client % len(WORDS)]}."), 16)


def _growing(client: int) -> Iterator[Turn]:
    for turn in range(6):
        yield Turn(user(f"Turn {turn} of client {client}: {text(120, 77 * client + turn)}"), 24)


def _mixed(client: int) -> Iterator[Turn]:
    if client % 4 == 3:
        yield Turn(user(f"Summary {client} of: {text(3000, client)}"), 16, delay=0.3 * (client % CELL))
    else:
        yield Turn(user(f"Number {client}. Write a long story about the {WORDS[client % len(WORDS)]}."), 96)


def _behind(client: int) -> Iterator[Turn]:
    """One prompt of about 6k tokens, and a short request that arrives while it is computed."""
    if client % CELL == 0:
        yield Turn(user(f"Summary number {client} of: {text(5000, 5 + client)}"), 8)
    else:
        yield Turn(user(f"Number {client}. Say hello to the {WORDS[client % len(WORDS)]}."), 8, delay=1.5)


def _tools() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": f"{word}_tool",
                "description": f"Works on the {word}. {text(60, number)}",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": text(20, 50 + number)},
                        "limit": {"type": "integer"},
                    },
                    "required": ["path"],
                },
            },
        }
        for number, word in enumerate(WORDS[:12])
    ]


def _agent(client: int) -> Iterator[Turn]:
    extra = (("tools", _tools()),)
    for turn in range(4):
        yield Turn(user(f"Step {turn} of agent {client}: {text(80, 9 * client + turn)}"), 32, extra=extra)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 6},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 40}, "number": {"type": "integer"}},
            "required": ["street", "number"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}


def _structured(client: int) -> Iterator[Turn]:
    format_ = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    prompt = f"Number {client}. Describe a person who likes the {WORDS[client % len(WORDS)]} as JSON."
    yield Turn(user(prompt), 64, extra=(("response_format", format_),))


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("short", "a short prompt, 64 new tokens", _short),
        Scenario("medium", "a cold prompt of about 500 tokens of its own, 16 new tokens", _medium),
        Scenario("long", "a cold prompt of 1,500 words of its own, 16 new tokens", _long),
        Scenario(
            "shared",
            "a system prompt of 1,500 words shared by all",
            _shared,
            lambda client: text(1500, 1 + client // CELL),
        ),
        Scenario("growing", "six turns of 120 words", _growing),
        Scenario("mixed", "three short streams for each prompt of 3,000 words", _mixed),
        Scenario("behind", "short requests behind a prompt of 5,000 words", _behind),
        Scenario(
            "agents",
            "four turns with tools and a long system prompt",
            _agent,
            lambda client: text(2500, 2 + client // CELL),
        ),
        Scenario("structured", "a JSON schema, 64 new tokens", _structured),
    )
}
