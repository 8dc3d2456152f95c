"""`pippin bench`: measures the running server over lengths of prompts and answers, and numbers of clients."""

import itertools
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from pippin.cli.arguments import KEEP, SERVER, argument, number, of_catalog, verb
from pippin.cli.chat.client import Ended, Piece, answer
from pippin.cli.running import Client
from pippin.cli.terminal import as_json, say, table
from pippin.config.errors import ConfigError


@verb(
    "bench",
    argument("model", nargs="?", help="the model; the one that is served if not given"),
    argument("--prompt", default="128", metavar="WORDS", help="lengths of prompts (default: 128)"),
    argument("--answer", default="64", metavar="TOKENS", help="lengths of answers (default: 64)"),
    argument("--clients", default="1,4,16", metavar="COUNTS", help="clients at once (default: 1,4,16)"),
    number("--requests", least=1, default=2, metavar="COUNT", help="requests of each (default: 2)"),
    argument("--json", metavar="FILE", help="write what was measured as JSON"),
    KEEP,
    *SERVER,
    of_catalog,
)
def bench(parsed: Namespace) -> int:
    from pippin.cli.chat.server import reached

    combinations = itertools.product(
        counts("--prompt", parsed.prompt),
        counts("--answer", parsed.answer),
        counts("--clients", parsed.clients),
    )
    points = []
    with reached(parsed, parsed.model) as server:
        for point in measure(server.client, server.model, combinations, parsed.requests):
            points.append(point)
            say(f"{point.clients} at once: {point.rate:.1f} tokens/s")
        say("\n" + shown(points))
        if parsed.json:
            told = {"model": server.model, "address": server.client.address, "points": points}
            Path(parsed.json).expanduser().write_text(as_json(told) + "\n")
    return 0


def counts(flag: str, text: str) -> list[int]:
    """Positive whole numbers separated by commas. Raises `ConfigError`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"{flag} {text}: takes whole numbers from 1, with commas, as in {flag} 1,4,16.")
    return [int(word) for word in words]


WORDS: Final = (
    "river mountain engine letter window garden market signal station history paper music winter travel number "
    "kitchen forest bridge captain doctor island machine picture question season table village weather"
).split()
HEADINGS: Final = ("PROMPT", "ANSWER", "CLIENTS", "TOKENS/S", "FIRST MS", "P99", "GAP MS", "P99")


@dataclass
class Reply:
    sent: float
    arrivals: list[float] = field(default_factory=list)
    ended: Ended = field(default_factory=lambda: Ended(None))


class Point(Struct, frozen=True):
    """One measurement. Times are in milliseconds; quantiles without data are None."""

    prompt_words: int  # about one token each
    answer_tokens: int
    clients: int
    requests: int
    seconds: float
    tokens: int  # of all answers
    rate: float  # tokens per second of all clients together
    first_ms: float | None
    first_p99_ms: float | None
    gap_ms: float | None
    gap_p99_ms: float | None
    proposed: int = 0  # tokens proposed by speculative decoding
    accepted: int = 0  # proposed tokens that were accepted


def measure(
    client: Client, model: str, combinations: Iterable[tuple[int, int, int]], requests: int
) -> Iterator[Point]:
    """Yields the point of each combination (words of a prompt, tokens of an answer, clients, which ask so often) as
    soon as it is measured. Prompts are unique, so that none is cached."""
    fresh = itertools.count(random.randrange(10**6))
    ask(client, model, 8, "Count to ten in words.")
    for words, tokens, clients in combinations:
        prompts = [text(words, next(fresh)) for _ in range(clients * requests)]
        began = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            replies = list(pool.map(partial(ask, client, model, tokens), prompts))
        yield point((words, tokens, clients), replies, time.perf_counter() - began)


def text(words: int, seed: int) -> str:
    """Random words of about one token each."""
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(words))


def ask(client: Client, model: str, tokens: int, prompt: str) -> Reply:
    """An answer of exactly so many tokens. Raises `ServerError`."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    reply = Reply(time.perf_counter())
    for part in answer(client, body):
        if isinstance(part, Piece):
            reply.arrivals.append(time.perf_counter())
        elif isinstance(part, Ended):
            reply.ended = part
    return reply


def point(name: tuple[int, int, int], replies: Sequence[Reply], seconds: float) -> Point:
    words, tokens, clients = name
    firsts = sorted(1000 * (reply.arrivals[0] - reply.sent) for reply in replies if reply.arrivals)
    gaps = sorted(
        1000 * (later - sooner) for reply in replies for sooner, later in itertools.pairwise(reply.arrivals)
    )
    made = sum(reply.ended.completion_tokens for reply in replies)
    accepted = sum(reply.ended.accepted_tokens for reply in replies)
    return Point(
        prompt_words=words,
        answer_tokens=tokens,
        clients=clients,
        requests=len(replies),
        seconds=seconds,
        tokens=made,
        rate=made / seconds,
        first_ms=statistics.median(firsts) if firsts else None,
        first_p99_ms=_p99(firsts),
        gap_ms=statistics.median(gaps) if gaps else None,
        gap_p99_ms=_p99(gaps),
        proposed=accepted + sum(reply.ended.rejected_tokens for reply in replies),
        accepted=accepted,
    )


def _p99(ordered: Sequence[float]) -> float | None:
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None


def shown(points: Sequence[Point]) -> str:
    """A table. Acceptance of proposed tokens is a column if there were any."""
    speculated = any(each.proposed for each in points)
    rows = []
    for each in points:
        times = (each.first_ms, each.first_p99_ms, each.gap_ms, each.gap_p99_ms)
        fate = f"{each.accepted / each.proposed:.0%} of {each.proposed}" if each.proposed else "-"
        rows.append(
            (
                *(str(each.prompt_words), str(each.answer_tokens), str(each.clients), f"{each.rate:.1f}"),
                *("-" if value is None else f"{value:.1f}" for value in times),
                *((fate,) if speculated else ()),
            )
        )
    headings = (*HEADINGS, "ACCEPTED") if speculated else HEADINGS
    return table(headings, rows)
