"""Sweeps over prompt lengths, answer lengths and numbers of clients, and reports the measurements."""

import asyncio
import csv
import io
import itertools
import json
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from pippin.cli.running import LOAD_SECONDS, address, refusal, server_process
from pippin.cli.terminal import table
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    import httpx
    import psutil


WORDS: Final = (
    "river mountain engine letter window garden market signal station history paper music winter travel number "
    "kitchen forest bridge captain doctor island machine picture question season table village weather"
).split()
HEAD: Final = (
    "| what | clients | tokens/s | first token ms | gap ms | gap p99 ms | CPU ms/token | MiB |",
    "|---|---|---|---|---|---|---|---|",
)

Message = dict[str, str]


@dataclass(frozen=True)
class Ask:
    """A request of a benchmark client."""

    words: str
    tokens: int
    delay: float = 0.0  # seconds before it is sent
    counts: bool = True  # whether the time to its first token is counted
    exact: bool = False  # whether the answer must have exactly `tokens` tokens
    schema: dict[str, Any] | None = None  # JSON schema of the answer


@dataclass(frozen=True)
class Scenario:
    what: str
    clients: tuple[tuple[Ask, ...], ...]  # one conversation per client
    system: str | None = None


@dataclass
class Reply:
    sent: float
    counts: bool
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    accepted: int = 0  # proposed tokens that the model accepted
    rejected: int = 0


@dataclass
class Run:
    """The replies of a scenario, and the CPU time and memory that it took, if these can be read."""

    seconds: float
    replies: list[Reply]
    cpu_seconds: float | None = None
    megabytes: float | None = None

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.replies)


def text(words: int, seed: int) -> str:
    """Random words of about one token each."""
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(words))


def scenarios(fresh: int) -> Iterator[Scenario]:
    """The scenarios. `fresh` makes prompts unique, so that the server's prefix cache does not have them."""

    def short(client: int) -> Ask:
        return Ask(f"Write a long story about the {WORDS[client % len(WORDS)]} number {fresh + client}.", 64)

    yield Scenario("one short prompt", ((short(0),),))
    yield Scenario("sixteen short prompts", tuple((short(client),) for client in range(1, 17)))
    shared = tuple((Ask(f"Tell me about the {WORDS[client]}.", 16),) for client in range(16))
    yield Scenario("a shared prefix of 1,500 words", shared, system=text(1500, fresh))
    turns = tuple(Ask(text(120, fresh + turn), 24, counts=turn > 0) for turn in range(6))
    yield Scenario("a growing conversation, turns 2 to 6", (turns,))
    long = Ask(text(5000, fresh + 7), 8, counts=False)
    behind = tuple((Ask(f"Name a {WORDS[client]}.", 16, delay=1.5),) for client in range(2))
    yield Scenario("short ones behind a prompt of 5,000 words", ((long,), *behind))


def bench_table(parsed: Namespace, model: str) -> Iterator[str]:
    """Measure all scenarios and yield the lines of the table, each as soon as it is measured."""
    with asyncio.Runner() as runner:
        warm = Scenario("", ((Ask("Count from one to ten in words.", 8),),))
        runner.run(run_scenario(parsed, model, warm))
        yield from HEAD
        for scenario in scenarios(random.randrange(10**6)):
            try:
                yield _row(scenario, runner.run(run_scenario(parsed, model, scenario)))
            except ServerError as error:
                yield f"| {scenario.what} | {len(scenario.clients)} | {error.report.message} | | | | | |"


def _row(scenario: Scenario, run: Run) -> str:
    firsts = [reply.arrivals[0] - reply.sent for reply in run.replies if reply.arrivals and reply.counts]
    gaps = sorted(
        later - sooner
        for reply in run.replies
        for sooner, later in zip(reply.arrivals, reply.arrivals[1:], strict=False)
    )
    figures = [
        f"{run.tokens / run.seconds:.1f}",
        f"{1000 * statistics.median(firsts):.0f}" if firsts else "-",
        f"{1000 * statistics.median(gaps):.1f}" if gaps else "-",
        f"{1000 * gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]:.1f}" if gaps else "-",
        "-" if run.cpu_seconds is None else f"{1000 * run.cpu_seconds / max(1, run.tokens):.2f}",
        "-" if run.megabytes is None else f"{run.megabytes:.0f}",
    ]
    return f"| {scenario.what} | {len(scenario.clients)} | " + " | ".join(figures) + " |"


async def run_scenario(parsed: Namespace, model: str, scenario: Scenario) -> Run:
    """Run the conversations of all clients of a scenario concurrently."""
    import httpx
    import psutil

    key = parsed.api_key or environment.client_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    pid = server_process(parsed)
    server = None if pid is None else psutil.Process(pid)
    cpu_before = _cpu_seconds(server)
    started = time.perf_counter()
    async with httpx.AsyncClient(
        base_url=address(parsed), timeout=LOAD_SECONDS, trust_env=False, headers=headers, limits=limits
    ) as client:
        talks = await asyncio.gather(
            *(_talk(client, model, scenario.system, asks) for asks in scenario.clients)
        )
    run = Run(time.perf_counter() - started, [reply for talk in talks for reply in talk])
    if server is not None:
        run.cpu_seconds = _cpu_seconds(server) - cpu_before
        run.megabytes = _resident(server) / 2**20
    return run


def _family(server: "psutil.Process") -> "list[psutil.Process]":
    """The server and its workers."""
    return [server, *server.children(recursive=True)]


def _cpu_seconds(server: "psutil.Process | None") -> float:
    if server is None:
        return 0.0
    return sum(_read(each, lambda process: float(sum(process.cpu_times()[:2]))) for each in _family(server))


def _resident(server: "psutil.Process") -> float:
    """Resident memory of the server and its workers, in bytes."""
    return sum(_read(each, lambda process: float(process.memory_info().rss)) for each in _family(server))


def _read(process: "psutil.Process", what: "Callable[[psutil.Process], float]") -> float:
    """The result of `what`, or 0 for a process that has ended."""
    import psutil

    try:
        return what(process)
    except psutil.NoSuchProcess:
        return 0.0


async def _talk(
    client: "httpx.AsyncClient", model: str, system: str | None, asks: tuple[Ask, ...]
) -> list[Reply]:
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    replies = []
    for ask in asks:
        await asyncio.sleep(ask.delay)
        messages.append({"role": "user", "content": ask.words})
        reply = await _answer(client, model, messages, ask)
        messages.append({"role": "assistant", "content": reply.text})
        replies.append(reply)
    return replies


async def _answer(client: "httpx.AsyncClient", model: str, messages: list[Message], ask: Ask) -> Reply:
    import httpx

    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": ask.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ask.exact:
        body["ignore_eos"] = True
    if ask.schema is not None:
        schema = {"name": "answer", "schema": ask.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    reply = Reply(time.perf_counter(), ask.counts)
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                await response.aread()
                raise ServerError("internal", refusal(response))
            async for line in response.aiter_lines():
                note(reply, line)
    except httpx.TransportError as error:
        raise ServerError("not_found", f"No server answers at {client.base_url} ({error}).") from None
    return reply


def note(reply: Reply, line: str) -> None:
    """Record one line of a stream of server-sent events."""
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return
    chunk: dict[str, Any] = from_json(data)
    if "error" in chunk:
        raise ServerError("internal", str(chunk["error"]["message"]))
    pieces = [
        choice["delta"].get("content") or choice["delta"].get("reasoning_content") or ""
        for choice in chunk.get("choices", ())
    ]
    if any(pieces):
        reply.arrivals.append(time.perf_counter())
        reply.text += "".join(pieces)
    usage = chunk.get("usage") or {}
    details = usage.get("completion_tokens_details") or {}
    reply.tokens = usage.get("completion_tokens", reply.tokens)
    reply.accepted = details.get("accepted_prediction_tokens", reply.accepted)
    reply.rejected = details.get("rejected_prediction_tokens", reply.rejected)


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
