"""A small server that is late for a reason that its caller names. Arguments: the port and the reason.

`busy` and `asleep` hold its event loop; `thread` has another thread hold the interpreter's lock
for 20 ms; `quick` needs 20 ms of a core. A helper beside it always has something to do, without the interpreter.
"""

import asyncio
import hashlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

HELD = 0.7  # seconds
BUSY = 0.2  # seconds of a core
WORK = 0.02  # seconds of a core
BLOCK = bytes(1 << 24)


def compute(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


def help_() -> None:
    while True:
        hashlib.sha256(BLOCK)  # gives the interpreter's lock away


def do(reason: str, pool: ThreadPoolExecutor) -> None:
    match reason:
        case "busy":
            compute(BUSY)
        case "asleep":
            time.sleep(HELD)
        case "thread":
            pool.submit(compute, WORK).result()
        case _:
            compute(WORK)


async def main(port: int, reason: str) -> None:
    threading.Thread(target=help_, daemon=True).start()
    pool = ThreadPoolExecutor(1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        do(reason, pool)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        print("ready", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
