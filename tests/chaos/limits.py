"""Far more than a limit allows, at once: whoever is answered is answered rightly, all others are told why."""

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.faults import Stage, chat_body, exchange_with_head, http_request
from tests.chaos.ledger import Ledger
from tests.chaos.server import ServerProcess

WORDS: Final = " ".join(["ash"] * 100)
NEVER: Final = "never"
SCRIPT: Final = {"gap": 0.0005, "rules": [{"when": {"user": NEVER}, "delay": 3600}]}
"""Echoes at once; whoever asks for `NEVER` waits for an hour."""

COUNTED: Final = {
    "requests a minute": ["--rate-limit", "40"],
    "tokens a minute": ["--token-rate-limit", "4000"],
    "requests at once": ["--max-concurrent", "4"],
    "the queue": ["--max-num-seqs", "2", "--queue-size", "4"],
}
LATE: Final = ("took longer than", "not accepted within its time limit")  # what a request out of time is told
PATIENCE: Final = 20  # times as long as an answer took alone, and as often as it is asked again


@dataclass(frozen=True)
class Reply:
    status: int
    head: bytes
    said: str  # the answer, or why there is none


async def past_every_limit(folder: Path, ledger: Ledger) -> None:
    """Each limit alone."""
    (folder / "alpha.script.json").write_text(json.dumps(SCRIPT))
    for limit, flags in COUNTED.items():
        async with serving(folder, flags, ledger) as stage:
            waves = [
                await ask_at_once(stage, [WORDS] * 100) for _ in range(2)
            ]  # tokens are counted at the end
        replies = [reply for wave in waves for reply in wave]
        for reply in replies:
            judge(reply, limit, ledger, refusals=(429, 503))
        if len({reply.status == 200 for reply in replies}) == 1:
            ledger.violation(f"{limit}: it was no limit, or nobody was answered")
    await past_the_time(folder, ledger)


async def past_the_time(folder: Path, ledger: Ledger) -> None:
    """The limit is measured from the machine, and half of the requests can't be answered within any."""
    limit = "the time of a request"
    async with serving(folder, [], ledger) as stage:
        await ask(stage, WORDS)  # which loads
        began = time.monotonic()
        judge(await ask(stage, WORDS), limit, ledger, refusals=())
        seconds = PATIENCE * (time.monotonic() - began)
    async with serving(folder, ["--timeout", f"{seconds:.2f}"], ledger) as stage:
        for _ in range(PATIENCE):
            if (await ask(stage, WORDS)).status == 200:
                break
        else:
            ledger.violation(f"{limit}: nobody is answered within {seconds:.2f} s, not even alone")
        for reply in await ask_at_once(stage, [WORDS, NEVER] * 50):
            judge(reply, limit, ledger, refusals=(408,))


@asynccontextmanager
async def serving(folder: Path, flags: list[str], ledger: Ledger) -> AsyncIterator[Stage]:
    server = ServerProcess(folder, ["alpha.script.json", *flags])
    await server.start()
    try:
        yield Stage(server, ["alpha"], ledger, random.Random(1))
    finally:
        await server.stop(signal.SIGTERM)


async def ask_at_once(stage: Stage, questions: list[str]) -> list[Reply]:
    return list(await asyncio.gather(*(ask(stage, words) for words in questions)))


async def ask(stage: Stage, words: str) -> Reply:
    async with asyncio.timeout(120):
        status, body, head = await exchange_with_head(
            stage, http_request("/v1/chat/completions", chat_body(stage, words))
        )
    answer = json.loads(body)
    said = answer["choices"][0]["message"]["content"] if status == 200 else answer["error"]["message"]
    return Reply(status, head.lower(), said)


def judge(reply: Reply, limit: str, ledger: Ledger, refusals: tuple[int, ...]) -> None:
    ledger.outcomes[f"{limit}: {reply.status}"] += 1
    if reply.status == 200 and reply.said != WORDS:
        ledger.violation(f"{limit}: asked {WORDS[:20]!r}..., was told {reply.said[:60]!r}")
    if reply.status not in (200, *refusals):
        ledger.violation(f"{limit}: {reply.status} {reply.said}")
    if reply.status in (429, 503) and b"retry-after:" not in reply.head:
        ledger.violation(f"{limit}: {reply.status} without Retry-After")
    if reply.status == 429 and b"x-ratelimit-limit-" not in reply.head:
        ledger.violation(f"{limit}: 429 without x-ratelimit headers")
    if reply.status == 408 and not any(words in reply.said for words in LATE):
        ledger.violation(f"{limit}: 408 says {reply.said!r}")
