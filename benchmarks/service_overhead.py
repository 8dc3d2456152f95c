"""What the server's own process pays for a streamed token: the service alone, over a scripted worker.

    python -m benchmarks.service_overhead [--streams 32] [--tokens 2000]

Prints the CPU time of the server's process per token, the tokens a second, and how many events were joined for
readers who were slower than the worker. `paced` is a model with a gap between its steps, as real ones have, so that
every step is read on its own; `flat out` is a worker that never waits.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

import uvloop
from tests.service_doubles import scripted, scripted_service, write_script

from pippin.core.conversation import Message, Text
from pippin.core.events import Finished, PartDelta
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.service import Service


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def stream(service: Service, number: int, tokens: int) -> tuple[int, int]:
    """Tokens and events of one stream."""
    request = GenerationRequest(
        model="default",
        messages=(Message("user", (Text("go"),)),),
        ignore_eos=True,
        max_tokens=tokens,
    )
    completed = events = 0
    async with await service.start(Generate(request), model="default", id=f"s{number}") as run:
        async for event in run.events():
            match event:
                case PartDelta():
                    events += 1
                case Finished(usage=usage):
                    completed += usage.completion_tokens
    return completed, events


async def measure(name: str, streams: int, tokens: int, gap: float, folder: Path) -> None:
    script = write_script(folder, {"say": ["word "] * 50, "gap": gap}, context_window=1 << 20)
    async with scripted_service(scripted(script=script)) as service:
        await service.preload()
        started, cpu = time.perf_counter(), cpu_seconds()
        results = await asyncio.gather(*(stream(service, number, tokens) for number in range(streams)))
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    total, events = sum(each[0] for each in results), sum(each[1] for each in results)
    print(
        f"{name:9} {streams} streams x {tokens} tokens: {cpu / total * 1e6:5.1f} us of CPU per token, "
        f"{total / seconds:8.0f} tokens/s, {total / events:.2f} tokens per event"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, gap in (("paced", 0.01), ("flat out", 0.0)):
            uvloop.run(measure(name, given.streams, given.tokens, gap, Path(folder)))


if __name__ == "__main__":
    main()
