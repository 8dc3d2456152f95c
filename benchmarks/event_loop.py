"""How long the largest requests that are allowed keep everybody else waiting.

    python -m benchmarks.event_loop [--only "chat: one text"] [--rounds 1]

A real server with a scripted model gets each request of `large_requests` while another process asks it for `/health`
without a pause. Shown for each: its status, its seconds, the longest answer of `/health` meanwhile, and the same
without the time in which the server or the asking process waited for a core. On a machine with something else to do
only the last figure means anything.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import tempfile
import time
from pathlib import Path

from tests.chaos.health.probes import Probe
from tests.chaos.server import ServerProcess
from tests.chaos.storm import probing

from benchmarks.large_requests import MODEL, Case, cases

SCRIPT = {
    "context_window": 1 << 30,
    "dimensions": 4096,
    "rules": [{"when": {"user": "^x"}, "say": "Well."}],  # what is longer is echoed
}
INTERVAL = 0.003  # seconds
QUIET = 0.2  # before and after


async def send(port: int, data: bytes) -> bytes:
    """The first line of the answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            first = await reader.readline()
            while await reader.read(1 << 20):
                pass
            return first
        finally:
            writer.transport.abort()
    except OSError as error:
        return type(error).__name__.encode()


async def measure(server: ServerProcess, case: Case) -> str:
    requests = case.requests()
    probes: list[Probe] = []
    async with probing(server, probes, INTERVAL):
        await asyncio.sleep(QUIET)
        began = time.monotonic()
        lines = await asyncio.gather(*(send(server.port, data) for data in requests))
        seconds = time.monotonic() - began
        await asyncio.sleep(QUIET)
    during = [probe for probe in probes if probe.began >= began - 0.05]
    took = max((probe.took for probe in during), default=0.0)
    own = max((probe.own for probe in during), default=0.0)
    status = " ".join(sorted({line.split()[1].decode() if b" " in line else line.decode() for line in lines}))
    return f"{case.name:55} {status:>12} {seconds:8.2f} s {took:9.1f} ms {own:9.1f} ms"


async def run(chosen: list[Case], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"{MODEL}.script.json").write_text(json.dumps(SCRIPT))
        server = ServerProcess(folder, [f"{MODEL}.script.json", "--enable-metrics"])
        await server.start()
        try:
            await server.ask(f"/v1/models/{MODEL}/load", "POST")
            print(f"{'':55} {'status':>12} {'took':>10} {'/health':>12} {'its own':>12}")
            for case in chosen:
                for _ in range(rounds):
                    print(await measure(server, case), flush=True)
        finally:
            await server.stop(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_loop", description=__doc__)
    parser.add_argument("--only", action="append", help="cases whose name holds this")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    chosen = [case for case in cases() if any(text in case.name for text in given.only or [""])]
    asyncio.run(run(chosen, given.rounds))


if __name__ == "__main__":
    main()
