"""What a swap between two models costs beyond the load, and whether swaps leave anything behind.

    python -m benchmarks.swaps --model FOLDER [--rounds 10] [--swaps 0] [--busy 0]

A round times one model's load twice: with nothing in memory, and with another model there that has to leave first.
Both are timed from the order to the moment in which the weights are ready, in turns, so that a change of the
machine's pace hits both alike. With `--busy 5` the other model is in use for so many seconds more. A script
(`x.script.json`) in place of the folder makes both stages of a load last as long as it says.

With `--swaps 100` as many swaps follow, each with a short answer, and what the server's process holds before and after
is compared: memory, file descriptors, child processes.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import msgspec
import psutil
from tests.service.doubles import scripted, scripted_service

from pippin.catalog.info import read_info
from pippin.config.options.server import ServerOptions
from pippin.core.conversation import Message, Text
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.service.service import Service

NAMES = ("one", "two")
MIB = 1 << 20


async def seconds_to_load(service: Service, name: str) -> float:
    started = time.perf_counter()
    await service.pool.load(name)
    return time.perf_counter() - started


async def one_round(service: Service, number: int, busy: float) -> tuple[float, float]:
    """Seconds of a load into empty memory, and of one that sends another model away."""
    first, second = NAMES[number % 2], NAMES[(number + 1) % 2]
    alone = await seconds_to_load(service, second)
    await service.pool.unload(second)
    await service.pool.load(first)
    if busy:
        lease = await service.pool.lease(service.model(first))
        asyncio.get_running_loop().call_later(busy, lease.release)
    swap = await seconds_to_load(service, second)
    await service.pool.unload(second)
    return alone, swap


async def answer(service: Service, name: str, number: int) -> str:
    request = GenerationRequest(
        model=name,
        messages=(Message("user", (Text("Name a colour."),)),),
        max_tokens=4,
        sampling=Sampling(temperature=0.0),
    )
    async with await service.start(Generate(request), model=name, id=f"swap {number}") as run:
        return (await run.collect()).choices[0].text("text")


def held() -> tuple[int, int, int]:
    """Bytes resident, open descriptors and children of this process."""
    process = psutil.Process()
    return process.memory_info().rss, process.num_fds(), len(process.children(recursive=True))


async def many_swaps(service: Service, swaps: int) -> None:
    answers = {await answer(service, NAMES[number % 2], number) for number in range(6)}
    before = held()
    for number in range(swaps):
        answers.add(await answer(service, NAMES[number % 2], number))
    after = held()
    print(
        f"{swaps} swaps: {len(answers)} different answer{'s' if len(answers) > 1 else ''} to one greedy prompt"
    )
    print(f"  memory      {before[0] / MIB:.1f} -> {after[0] / MIB:.1f} MiB")
    print(f"  descriptors {before[1]} -> {after[1]}")
    print(f"  processes   {before[2]} -> {after[2]}")


async def measure(model: Path, rounds: int, swaps: int, busy: float) -> None:
    info = scripted(script=model) if model.name.endswith(".script.json") else read_info(model)
    infos = [msgspec.structs.replace(info, id=name) for name in NAMES]
    async with scripted_service(*infos, options=ServerOptions(max_models=1)) as service:
        await one_round(service, 0, busy)  # the files are in the system's cache from here on
        times = [await one_round(service, number, busy) for number in range(rounds)]
        alone, swap = (statistics.median(each[place] for each in times) for place in (0, 1))
        more = [each[1] - each[0] for each in times]
        print(f"load alone {alone * 1e3:6.0f} ms (median of {rounds})")
        print(f"swap       {swap * 1e3:6.0f} ms")
        print(
            f"difference {statistics.median(more) * 1e3:6.0f} ms (from {min(more) * 1e3:.0f} to {max(more) * 1e3:.0f})"
        )
        if swaps:
            await many_swaps(service, swaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a model's folder")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--swaps", type=int, default=0)
    parser.add_argument(
        "--busy", type=float, default=0.0, help="seconds that the other model is still in use"
    )
    given = parser.parse_args()
    asyncio.run(measure(given.model, given.rounds, given.swaps, given.busy))


if __name__ == "__main__":
    main()
