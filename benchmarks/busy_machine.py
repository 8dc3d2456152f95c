"""What a server keeps of its speed while other programs want the cores.

    python -m benchmarks.busy_machine --model FOLDER [--loops 2] [--rounds 3] [-- --cpu-kernels off]

Eight clients ask at once, in turns on the machine as it is and beside processes that count for ever. What stands
behind `--` goes to `pippin serve`. On a machine with other work the ratio says little: the load average is told too.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.peers import wait_until_up

CLIENTS = 8
PORT = 8231
SETTLE = 4.0  # seconds for the server to notice who else is there
LOOP = "while True: pass"


async def tokens_per_second(tokens: int) -> float:
    body: dict[str, Any] = {"model": "busy", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=600) as client:

        async def one(number: int) -> int:
            said = [{"role": "user", "content": f"Tell me of the number {number}."}]
            reply = await client.post("/v1/chat/completions", json=body | {"messages": said})
            reply.raise_for_status()
            return int(reply.json()["usage"]["completion_tokens"])

        began = time.perf_counter()
        counts = await asyncio.gather(*(one(number) for number in range(CLIENTS)))
        return sum(counts) / (time.perf_counter() - began)


def beside(loops: int, tokens: int) -> float:
    others = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    try:
        asyncio.run(tokens_per_second(4))
        time.sleep(SETTLE if loops else 0)
        return asyncio.run(tokens_per_second(tokens))
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    given, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"]
    command = [sys.executable, "-m", "pippin", "serve", str(given.model), "--served-model-name", "busy"]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home}
        server = subprocess.Popen(
            [*command, "--port", str(PORT), *flags], env=environment, stdout=subprocess.DEVNULL
        )
        try:
            wait_until_up(PORT, server, 300)
            asyncio.run(tokens_per_second(4))
            for _ in range(given.rounds):
                load = os.getloadavg()[0]
                quiet, busy = beside(0, given.tokens), beside(given.loops, given.tokens)
                print(
                    f"load {load:.1f}: {quiet:.1f} tokens/s, beside {given.loops} loops {busy:.1f}: {busy / quiet:.2f}"
                )
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main()
