"""What is done to the server, one act at a time, while clients go on asking."""

import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import psutil

from tests.chaos.ledger import Ledger
from tests.chaos.server import ServerProcess


@dataclass
class Stage:
    server: ServerProcess
    models: list[str]
    ledger: Ledger
    random: random.Random


Act = Callable[[Stage], Awaitable[None]]
LONG_WORDS: Final = " ".join(["yew"] * 3000)


async def kill_a_worker(stage: Stage) -> None:
    if workers := stage.server.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            stage.random.choice(workers).kill()


async def stop_a_worker_for_a_while(stage: Stage) -> None:
    """It hangs, and goes on; or it hangs, and is killed."""
    if workers := stage.server.workers():
        worker = stage.random.choice(workers)
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.suspend()
            await asyncio.sleep(stage.random.uniform(0.5, 2))
            if stage.random.random() < 0.5:
                worker.resume()
            else:
                worker.kill()


async def restart_the_server(stage: Stage) -> None:
    number = stage.random.choice([signal.SIGTERM, signal.SIGKILL])
    stage.ledger.going_down()
    orphans = await stage.server.stop(number)
    if orphans:
        stage.ledger.violation(f"workers outlived the server's {number.name}: {orphans}")
    await stage.server.start()
    stage.ledger.up_again()


async def hang_up_at_random(stage: Stage) -> None:
    """Hundreds of connections, each cut off somewhere between the first byte sent and the last one read."""

    async def one(moment: float, part: float) -> None:
        body = chat_body(stage, LONG_WORDS, stream=stage.random.random() < 0.5)
        request = http_request("/v1/chat/completions", body)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
            writer.write(request[: int(len(request) * part)] if part < 0.3 else request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(moment):
                    while await reader.read(100):
                        pass
            writer.transport.abort()

    for _ in range(6):
        await asyncio.gather(*(one(stage.random.uniform(0, 0.5), stage.random.random()) for _ in range(50)))
    stage.ledger.outcomes["hung up"] += 300


async def read_slowly(stage: Stage) -> None:
    """The server must not wait for such a reader, nor gather without end what it has not read."""

    async def one() -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(4):
                reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port, limit=256)
                writer.write(http_request("/v1/chat/completions", chat_body(stage, LONG_WORDS, stream=True)))
                while await reader.read(1):  # noqa: ASYNC110 - it is slow on purpose
                    await asyncio.sleep(0.05)
        writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(8)))


async def flood(stage: Stage) -> None:
    """Many more requests at once than the server takes: each is answered or told to come again."""

    async def one() -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(60):
                status, body = await exchange(
                    stage, http_request("/v1/chat/completions", chat_body(stage, "flood"))
                )
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            if not stage.ledger.was_down(began):
                stage.ledger.violation(f"flood: {type(error).__name__}")
            return
        if status == 200 or (status in (424, 429, 500, 503) and b'"message"' in body):
            stage.ledger.outcomes[f"flood {status}"] += 1
        elif not stage.ledger.was_down(began):
            stage.ledger.violation(f"flood: {status} {body[:100]!r}")

    await asyncio.gather(*(one() for _ in range(300)))


async def send_rubbish(stage: Stage) -> None:
    """Bodies that are broken, huge, deep or endless: each is refused by name, none with a 5xx."""
    deep = b'{"messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    many = b'{"messages":[' + b"[]," * 600_000 + b"[]]}"
    huge = b'{"model":"' + b"x" * (3 << 20) + b'"}'
    bodies = [b"", b"{", b"\xff\xfe\x00", b"null", b'{"messages":[]}', deep, many, huge]
    bodies += [stage.random.randbytes(stage.random.randrange(1, 5000)) for _ in range(20)]
    whole = chat_body(stage, "x")
    for _ in range(20):  # flips in a good body
        damaged = bytearray(whole)
        damaged[stage.random.randrange(len(damaged))] = stage.random.randrange(256)
        bodies.append(bytes(damaged))
    for body in bodies:
        path = stage.random.choice(
            [
                *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"),
                *("/api/chat", "/api/generate", "/api/v0/chat/completions"),
                *("/v1/batches", "/v1/files"),
            ]
        )
        began = time.monotonic()
        try:
            async with asyncio.timeout(30):
                status, answer = await exchange(stage, http_request(path, body))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            continue  # a connection that is cut off in the middle of a huge body
        died = status in (500, 503) and any(word in answer for word in (b"worker", b"died", b"ended"))
        if status >= 500 and not died and not stage.ledger.was_down(began):
            stage.ledger.violation(f"rubbish: {status} for {body[:60]!r} at {path}: {answer[:200]!r}")
        stage.ledger.outcomes[f"rubbish {status // 100}xx"] += 1
    for raw in (b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"):
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(2):
                await exchange(stage, raw)


async def load_a_broken_model(stage: Stage) -> None:
    """A model whose file is damaged is a clear error, and works once the file is whole again."""
    path = stage.server.folder / "gamma.script.json"
    for text in ("{", '{"rules": 5}', '{"load_fault": "abort"}', '{"load_fault": "exit"}', "\0" * 100):
        path.write_text(text)
        began = time.monotonic()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            status, answer = await exchange(
                stage, http_request("/v1/chat/completions", chat_body(stage, "x", model="gamma"))
            )
            refused = status in (424, 503, 500, 400) and b'"message"' in answer
            refused = refused or status == 200  # it was in memory still
            if not refused and not stage.ledger.was_down(began):
                stage.ledger.violation(f"broken model: {status} {answer[:150]!r}")
            stage.ledger.outcomes[f"broken model {status}"] += 1
    path.write_text("{}")


async def connect_and_say_nothing(stage: Stage) -> None:
    """Hundreds of connections that never ask anything, as a client with a leak has them."""
    opened = []
    for _ in range(500):
        with contextlib.suppress(OSError):
            opened.append((await asyncio.open_connection("127.0.0.1", stage.server.port))[1])
    await asyncio.sleep(0.5)
    for writer in opened:
        writer.transport.abort()
    stage.ledger.outcomes["silent connections"] += len(opened)


async def jump_the_clock(stage: Stage) -> None:
    """Wall time jumps; the monotonic clock can't, and waits and limits go by it."""
    for shift in (86400 * 365, -86400 * 365, 3600, 0):
        stage.server.shift_clock(shift)
        await asyncio.sleep(0.4)


ACTS: Final[dict[str, Act]] = {
    "a worker killed": kill_a_worker,
    "a worker stopped": stop_a_worker_for_a_while,
    "hang-ups": hang_up_at_random,
    "slow readers": read_slowly,
    "a flood": flood,
    "silent connections": connect_and_say_nothing,
    "rubbish": send_rubbish,
    "a broken model": load_a_broken_model,
    "the clock jumping": jump_the_clock,
    "the server restarted": restart_the_server,
}


WAITING: Final = frozenset({"slow readers", "the clock jumping"})
"""Acts that mostly wait: others go on meanwhile."""


def chat_body(stage: Stage, words: str, *, stream: bool = False, model: str | None = None) -> bytes:
    name = model or stage.random.choice(stage.models)
    body = {"model": name, "messages": [{"role": "user", "content": words}], "stream": stream}
    return json.dumps(body).encode()


def http_request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def exchange(stage: Stage, request: bytes) -> tuple[int, bytes]:
    """Status and body."""
    status, body, _ = await exchange_with_head(stage, request)
    return status, body


async def exchange_with_head(stage: Stage, request: bytes) -> tuple[int, bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.server.port)
    try:
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        answer = await reader.read(1 << 20)
        while more := await reader.read(1 << 20):
            answer += more
        if not answer:
            raise asyncio.IncompleteReadError(b"", 1)
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body, head
    finally:
        writer.transport.abort()
