"""Sweeps over prompt lengths, answer lengths and numbers of clients, and reports the measurements."""

import asyncio
import csv
import io
import itertools
import json
import random
import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from pippin.cli.bench.scenarios import Ask, Run, Scenario, run_scenario, text
from pippin.cli.terminal import table
from pippin.config.errors import ConfigError
from pippin.core.decoding import from_json

BAR: Final = 40  # columns of the longest bar
HEADINGS: Final = ("PROMPT", "ANSWER", "CLIENTS", "TOKENS/S", "FIRST MS", "P99", "GAP MS", "P99")


class Point(Struct, frozen=True):
    """One measurement. Times are in milliseconds; quantiles without data are None."""

    prompt_words: int  # about one token each; 0 if the prompts are from a file
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

    @property
    def name(self) -> tuple[int, int, int]:
        return self.prompt_words, self.answer_tokens, self.clients


class Report(Struct, frozen=True):
    """A run of `pippin bench`, as saved in its JSON file."""

    model: str
    address: str
    points: list[Point]


class Sweep(Struct, frozen=True):
    """The combinations to measure, with `requests` requests per client. `prompts` replace generated prompts."""

    prompts_of: Sequence[int]
    answers_of: Sequence[int]
    clients: Sequence[int]
    requests: int
    prompts: Sequence[str] = ()
    schema: dict[str, Any] | None = None


def measure(parsed: Namespace, model: str, sweep: Sweep) -> Iterator[Point]:
    """Yields the points, each as soon as it is measured. Generated prompts are unique, so that none is cached."""
    fresh = itertools.count(random.randrange(10**6))
    lengths = [0] if sweep.prompts else sweep.prompts_of
    with asyncio.Runner() as runner:
        runner.run(run_scenario(parsed, model, Scenario("", ((Ask("Count to ten in words.", 8),),))))
        for words, tokens, clients in itertools.product(lengths, sweep.answers_of, sweep.clients):
            shown = itertools.cycle(sweep.prompts) if sweep.prompts else None
            asks = [
                Ask(
                    next(shown) if shown else text(words, next(fresh)),
                    tokens,
                    exact=sweep.schema is None,
                    schema=sweep.schema,
                )
                for _ in range(clients * sweep.requests)
            ]
            runs = [
                runner.run(
                    run_scenario(
                        parsed, model, Scenario("", tuple((ask,) for ask in asks[at : at + clients]))
                    )
                )
                for at in range(0, len(asks), clients)
            ]
            yield point(words, tokens, clients, runs)


def point(words: int, tokens: int, clients: int, runs: Sequence[Run]) -> Point:
    replies = [reply for run in runs for reply in run.replies]
    firsts = sorted(1000 * (reply.arrivals[0] - reply.sent) for reply in replies if reply.arrivals)
    gaps = sorted(
        1000 * (later - sooner) for reply in replies for sooner, later in itertools.pairwise(reply.arrivals)
    )
    seconds, made = sum(run.seconds for run in runs), sum(run.tokens for run in runs)
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
        proposed=sum(reply.accepted + reply.rejected for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
    )


def _p99(ordered: Sequence[float]) -> float | None:
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None


def read_prompts(path: Path, most: int) -> list[str]:
    """The first questions in a ShareGPT-like file, or in lines of JSON or text. Raises `ConfigError`."""
    try:
        written = path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset {path}: cannot be read ({error}).") from None
    try:
        loaded = json.loads(written)
        items = loaded if isinstance(loaded, list) else [loaded]
    except ValueError:
        items = [_line(line) for line in written.splitlines() if line.strip()]
    found = [prompt for item in items if (prompt := _prompt(item))]
    if not found:
        raise ConfigError(
            f"--dataset {path}: no prompt in it. It takes ShareGPT's `conversations`, `messages`, `prompt`, or text."
        )
    return found[:most]


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _prompt(item: Any) -> str | None:
    match item:
        case str():
            return item
        case {"conversations": [{"value": str(said)}, *_]} | {"messages": [{"content": str(said)}, *_]}:
            return said
        case {"prompt": str(said)} | {"text": str(said)}:
            return said
        case _:
            return None


def shown(points: Sequence[Point]) -> str:
    """A table, and bars of the rate. Acceptance of proposed tokens is a column if there were any."""
    speculated = any(each.proposed for each in points)
    rows = [
        (
            str(each.prompt_words or "file"),
            str(each.answer_tokens),
            str(each.clients),
            f"{each.rate:.1f}",
            *("-" if value is None else f"{value:.1f}" for value in _times(each)),
            *((_fate(each),) if speculated else ()),
        )
        for each in points
    ]
    most = max((each.rate for each in points), default=0.0) or 1.0
    bars = [f"{_label(each):>22}  {'█' * round(BAR * each.rate / most)} {each.rate:.1f}" for each in points]
    headings = (*HEADINGS, "ACCEPTED") if speculated else HEADINGS
    return "\n".join([table(headings, rows), "", "tokens a second", *bars])


def _fate(each: Point) -> str:
    return f"{each.accepted / each.proposed:.0%} of {each.proposed}" if each.proposed else "-"


def _times(each: Point) -> tuple[float | None, ...]:
    return each.first_ms, each.first_p99_ms, each.gap_ms, each.gap_p99_ms


def _label(each: Point) -> str:
    return f"{each.prompt_words or 'file'} + {each.answer_tokens}, {each.clients} at once"


def as_csv(points: Sequence[Point]) -> str:
    output = io.StringIO()
    writer = csv.DictWriter(output, Point.__struct_fields__)
    writer.writeheader()
    writer.writerows(msgspec.structs.asdict(each) for each in points)
    return output.getvalue()


def read_report(path: Path) -> Report:
    try:
        return from_json(path.expanduser().read_bytes(), Report)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"--compare {path}: not a file that `pippin bench --json` wrote ({error})."
        ) from None


def compared(before: Report, after: Report) -> str:
    """The points that both reports have, side by side, with the ratio of the second to the first."""
    earlier = {each.name: each for each in before.points}
    rows = [
        (
            _label(each),
            f"{earlier[each.name].rate:.1f}",
            f"{each.rate:.1f}",
            _ratio(earlier[each.name].rate, each.rate),
            _ratio(earlier[each.name].first_ms, each.first_ms),
            _ratio(earlier[each.name].gap_ms, each.gap_ms),
        )
        for each in after.points
        if each.name in earlier
    ]
    if not rows:
        return "The two runs measured nothing alike: give both the same lengths and clients."
    return table(("WHAT", "BEFORE", "AFTER", "TOKENS/S x", "FIRST x", "GAP x"), rows)


def _ratio(before: float | None, after: float | None) -> str:
    return f"{after / before:.2f}" if before and after is not None else "-"
