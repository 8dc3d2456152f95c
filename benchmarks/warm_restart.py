"""What the disk tier saves: a known prompt after a restart of the server, beside computing it.

    python -m benchmarks.warm_restart --model FOLDER [--words 1500] [--rounds 3] [--serve="--kv-bits 8"]

Starts `pippin serve --prompt-cache-dir` on a folder of its own, asks a prompt that nobody knows (cold), asks it again
(in memory), kills the server with SIGKILL, starts it again and asks a third time (killed): milliseconds to the first
token, seen by a client. A short request goes before, so that nobody pays for a server's first answer. All three answers
must be equal. `--serve` are more options of the server.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import aiohttp

from benchmarks.compare import RESULTS, free_port
from benchmarks.load import Reply, ask, body
from benchmarks.peers import PEERS, serve
from benchmarks.scenarios import Turn, text, user

WRITTEN_SECONDS = 2.0  # within which the disk's thread has written all, before a kill
ANSWER = 16  # tokens


async def answers(port: int, prompt: str, times: int) -> list[Reply]:
    """A short request, then the prompt so many times."""
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1800)) as session:
        # It is nonsense that a model may not answer.
        known = Turn(user(prompt), ANSWER, extra=(("min_tokens", ANSWER), ("temperature", 0)))
        turns = [Turn(user("Hello."), 2), *[known] * times]
        replies = [await ask(session, url, body("bench", [turn.message], turn)) for turn in turns]
    for reply in replies:
        assert reply.error is None, reply.error
    return replies[1:]


def measure(model: Path, prompt: str, folder: Path, times: int, more: list[str]) -> list[Reply]:
    """One life of a server, which ends in a kill."""
    port = free_port()
    command = (*PEERS["pippin"].command, "--prompt-cache-dir", str(folder), *more)
    with serve(replace(PEERS["pippin"], command=command), model, port) as process:
        replies = asyncio.run(answers(port, prompt, times))
        time.sleep(WRITTEN_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return replies


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", type=str.split, default=[])
    options = parser.parse_args()
    found: dict[str, list[float]] = {"cold": [], "memory": [], "killed": []}
    for number in range(options.rounds):
        prompt = text(options.words, 4000 + number)
        with tempfile.TemporaryDirectory() as folder:
            cold, memory = measure(options.model, prompt, Path(folder), 2, options.serve)
            [killed] = measure(options.model, prompt, Path(folder), 1, options.serve)
        assert cold.text == memory.text == killed.text
        for name, reply in (("cold", cold), ("memory", memory), ("killed", killed)):
            assert reply.first is not None
            found[name].append(1000 * reply.first)
            print(
                f"{name:8} {1000 * reply.first:8.0f} ms, {reply.cached_tokens} of {reply.prompt_tokens} cached",
                flush=True,
            )
    middle = {name: statistics.median(times) for name, times in found.items()}
    print("\n| prompt | first token ms | times faster |\n|---|---|---|")
    for name, milliseconds in middle.items():
        print(f"| {name} | {milliseconds:.0f} | {middle['cold'] / milliseconds:.1f} |")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"warm-restart-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"words": options.words, **found}))
    print(f"\n{path}")


if __name__ == "__main__":
    main()
