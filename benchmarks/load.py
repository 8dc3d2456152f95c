"""A load generator for any OpenAI-compatible server on loopback.

    python -m benchmarks.load http://127.0.0.1:8000 --model M --scenario short --clients 16 --pid PID

Prints one JSON line: time to first token, gaps between chunks, output tokens a second, errors, and with a pid
the CPU seconds per output token and the memory of that process and its children.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import psutil

from benchmarks.scenarios import CELL, SCENARIOS, Scenario, Turn


@dataclass
class Reply:
    """One streamed answer, with the moment of each chunk that carried text. Seconds on a monotonic clock."""

    sent: float
    chunks: list[float] = field(default_factory=list)
    text: str = ""
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None
    turn: int = 0

    @property
    def first(self) -> float | None:
        return self.chunks[0] - self.sent if self.chunks else None


@dataclass
class Result:
    scenario: str
    clients: int
    seconds: float
    requests: int
    errors: list[str]
    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int
    tokens_per_second: float
    first_median: float | None
    first_p99: float | None
    first_later_median: float | None  # of turns after the first
    first_by_client: list[float]  # of first turns, in client order
    gap_median: float | None
    gap_p99: float | None
    cpu_per_token: float | None = None
    memory_mb: float | None = None


def percentile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def note(reply: Reply, chunk: dict[str, Any]) -> None:
    if chunk.get("error"):
        reply.error = json.dumps(chunk["error"])[:300]
    if usage := chunk.get("usage"):
        reply.completion_tokens = usage.get("completion_tokens") or 0
        reply.prompt_tokens = usage.get("prompt_tokens") or 0
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
        if piece or delta.get("tool_calls"):
            reply.chunks.append(time.perf_counter())
            reply.text += piece


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], reply: Reply | None = None
) -> Reply:
    """`reply`: where chunks are noted, for who cancels the request."""
    reply = reply or Reply(time.perf_counter())
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                reply.error = f"{response.status} {(await response.text())[:300]}"
                return reply
            async for line in response.content:
                if line.startswith(b"data: {"):
                    note(reply, json.loads(line[6:]))
    except (aiohttp.ClientError, TimeoutError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    if not reply.error and not reply.chunks:
        reply.error = "empty answer"
    return reply


async def client(
    session: aiohttp.ClientSession, url: str, model: str, scenario: Scenario, number: int
) -> list[Reply]:
    system = scenario.system(number)
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    replies: list[Reply] = []
    for index, turn in enumerate(scenario.turns(number)):
        if turn.delay:
            await asyncio.sleep(turn.delay)
        messages.append(turn.message)
        reply = await ask(session, url, body(model, messages, turn))
        reply.turn = index
        messages.append({"role": "assistant", "content": reply.text})
        replies.append(reply)
    return replies


def body(model: str, messages: list[dict[str, str]], turn: Turn) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages,
        "max_tokens": turn.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **dict(turn.extra),
    }


class ProcessMeter:
    """CPU and memory of a process and its children, read from the operating system."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)

    def tree(self) -> list[psutil.Process]:
        return [self.root, *self.root.children(recursive=True)]

    def cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.tree())

    def memory_mb(self) -> float:
        return sum(process.memory_info().rss for process in self.tree()) / 2**20


async def run(
    url: str, model: str, scenario: Scenario, clients: int, pid: int | None = None, cell: int = 0
) -> Result:
    """One run: all clients start together, each speaks its turns one after the other."""
    meter = ProcessMeter(pid) if pid else None
    timeout = aiohttp.ClientTimeout(total=1800)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=2**20) as session:
        cpu = meter.cpu_seconds() if meter else 0.0
        start = time.perf_counter()
        talks = await asyncio.gather(
            *(client(session, url, model, scenario, cell * CELL + number) for number in range(clients))
        )
        seconds = time.perf_counter() - start
    result = summary(scenario.name, clients, seconds, talks)
    if meter:
        result.cpu_per_token = (meter.cpu_seconds() - cpu) / max(1, result.completion_tokens)
        result.memory_mb = meter.memory_mb()
    return result


def summary(scenario: str, clients: int, seconds: float, talks: list[list[Reply]]) -> Result:
    replies = [reply for talk in talks for reply in talk]
    gaps = [b - a for reply in replies for a, b in zip(reply.chunks, reply.chunks[1:], strict=False)]
    firsts = [reply.first for reply in replies if reply.first is not None]
    later = [reply.first for reply in replies if reply.first is not None and reply.turn]
    tokens = sum(reply.completion_tokens or len(reply.chunks) for reply in replies)
    return Result(
        scenario=scenario,
        clients=clients,
        seconds=seconds,
        requests=len(replies),
        errors=[reply.error for reply in replies if reply.error],
        completion_tokens=tokens,
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        cached_tokens=sum(reply.cached_tokens for reply in replies),
        tokens_per_second=tokens / seconds,
        first_median=median(firsts),
        first_p99=percentile(firsts, 0.99),
        first_later_median=median(later),
        first_by_client=[talk[0].first or -1.0 for talk in talks],
        gap_median=median(gaps),
        gap_p99=percentile(gaps, 0.99),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--scenario", choices=SCENARIOS, default="short")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--pid", type=int, help="server process to measure")
    options = parser.parse_args()
    scenario = SCENARIOS[options.scenario]
    result = asyncio.run(run(options.url.rstrip("/"), options.model, scenario, options.clients, options.pid))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
