"""Serve mixed work for long, and show that nothing grows: `python -m tests.soak [--minutes 60]`.

A real server serves small random models of several kinds (attention, sliding windows, recurrent state, embeddings, and
adapters on one of them), and room for fewer models than there are. Clients ask for long and short prompts, streamed and
whole, for structured output and for embeddings; one in five hangs up. Every minute all models are unloaded and what is
left of the server is measured: memory, descriptors, threads and processes. The run fails where the last measurement is
above the first by more than `ALLOWED`. The first comes after the warm-up, as Python and its libraries keep what they
have once taken.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from benchmarks.svg import Line, chart

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas
from tests.running_server import ROOT, running_server

CLIENTS: Final = 6
ROUND: Final = 60.0  # seconds of work between two measurements
SHORTEST_ROUND: Final = 15.0
LEAVE_WITHIN: Final = 60.0  # seconds for workers to end
MODELS: Final = ("llama", "gemma3_text", "qwen3_next", "lfm2")
EMBEDDER: Final = "embedder"
SCHEMA: Final = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
PLOT: Final = ROOT / "docs" / "plots" / "soak.svg"


@dataclass(frozen=True)
class Rest:
    """What the server and its workers take while nothing runs and no model is loaded. Memory in MiB."""

    minute: float
    memory: float
    descriptors: int
    threads: int
    processes: int
    busy_memory: float  # of the server and all workers, just before
    answered: int


ALLOWED: Final = {"memory": 24.0, "descriptors": 4, "threads": 3, "processes": 0}


class Soak:
    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._server = next(
            child for child in psutil.Process().children() if "serve" in " ".join(child.cmdline())
        )
        self._began = time.monotonic()
        self.answers: Counter[str] = Counter()
        self.rests: list[Rest] = []

    async def run(self, minutes: float, length: float) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # connections of ours are no leak of the server's
        async with httpx.AsyncClient(base_url=self._address, timeout=300.0, limits=limits) as client:
            await self._round(client, length)  # the warm-up
            end = time.monotonic() + minutes * 60
            self._began = time.monotonic()
            await self._rest(client)
            while time.monotonic() < end:
                await self._round(client, min(length, max(1.0, end - time.monotonic())))
                await self._rest(client)

    async def _round(self, client: httpx.AsyncClient, seconds: float) -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._client(client, until) for _ in range(CLIENTS)))

    async def _client(self, client: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            path, body = self._wish()
            gives_up = self._random.uniform(0.01, 0.5) if self._random.random() < 0.2 else None
            try:
                async with asyncio.timeout(gives_up):
                    self.answers[await _asked(client, path, body)] += 1
            except TimeoutError:
                self.answers["hung up"] += 1

    def _wish(self) -> tuple[str, dict[str, Any]]:
        draw = self._random
        if draw.random() < 0.15:
            return "/v1/embeddings", {"model": EMBEDDER, "input": [self._words(draw.randint(5, 300))] * 2}
        model = draw.choice(MODELS)
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self._words(draw.choice((20, 60, 200, 2500)))}],
            "max_tokens": draw.choice((1, 8, 60)),
            "stream": draw.random() < 0.5,
            "temperature": draw.choice((0.0, 1.0)),
            "n": draw.choice((1, 1, 1, 2)),
        }
        if model == "llama" and draw.random() < 0.5:
            body["adapter_path"] = draw.choice(("one", "two"))
        if draw.random() < 0.2:
            schema = {"name": "answer", "schema": SCHEMA}
            body |= {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 24}
        return "/v1/chat/completions", body

    def _words(self, characters: int) -> str:
        shared = "A prompt that many begin with, so that the prefix cache has something to find. "
        letters = "".join(self._random.choices("abcdefgh ij klmno ", k=characters))
        return (shared if self._random.random() < 0.5 else "") + letters

    async def _rest(self, client: httpx.AsyncClient) -> None:
        """Unload everything, and measure what is left."""
        busy = _memory([self._server, *self._server.children(recursive=True)])
        until = time.monotonic() + LEAVE_WITHIN
        while (
            self._server.children() and time.monotonic() < until
        ):  # some still load for clients that have left
            await client.post("/v1/models/unload", json={})
            await asyncio.sleep(1.0)
        processes = [self._server, *self._server.children(recursive=True)]
        rest = Rest(
            minute=(time.monotonic() - self._began) / 60,
            memory=_memory(processes),
            descriptors=sum(each.num_fds() for each in processes),
            threads=sum(each.num_threads() for each in processes),
            processes=len(processes),
            busy_memory=busy,
            answered=self.answers.total(),
        )
        self.rests.append(rest)
        print(json.dumps(asdict(rest)), flush=True)


async def _asked(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    """Ask, read all of the answer, and say how it went."""
    async with client.stream("POST", path, json=body) as reply:
        text = (await reply.aread()).decode()
    if reply.status_code != 200:
        return f"{reply.status_code} {text[:120]}"
    if body.get("stream"):
        return (
            "streamed"
            if text.endswith("data: [DONE]\n\n") and '"error"' not in text
            else f"broken {text[-120:]}"
        )
    return "embedded" if "embeddings" in path else "whole"


def _memory(processes: list[psutil.Process]) -> float:
    """MiB resident, of those that are still there."""
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20


def grown(rests: list[Rest]) -> list[str]:
    """What the last rest has more of than the first, beyond what is allowed."""
    first, last = asdict(rests[0]), asdict(rests[-1])
    return [
        f"{name}: {first[name]:g} at the start, {last[name]:g} at the end, {allowed:g} more allowed"
        for name, allowed in ALLOWED.items()
        if last[name] - first[name] > allowed
    ]


def write_plot(rests: list[Rest], path: Path) -> None:
    lines = [
        Line("memory at rest, MiB", [(each.minute, each.memory) for each in rests]),
        Line("descriptors at rest", [(each.minute, float(each.descriptors)) for each in rests]),
        Line("threads at rest", [(each.minute, float(each.threads)) for each in rests]),
    ]
    path.write_text(chart("The server between rounds of mixed work", "minutes", "", lines))


def make_models(folder: Path) -> list[str]:
    """Write the models and adapters, and give the words of the command line that serve them."""
    accelerate_blas(ModelOptions(), 1)
    from tests.engines.language.model.test_lora import adapter  # these import mlx
    from tests.engines.tiny_models import tiny_model

    for name in MODELS:
        tiny_model(name, folder / "models" / name)
    tiny_model("qwen3", folder / "models" / EMBEDDER)
    adapters = {name: adapter(folder / name, rank, rank) for name, rank in (("one", 4), ("two", 8))}
    lines = [
        "max_models: 3",
        "contention_wait: 240",
        "models:",
        *(f"  - path: {folder / 'models' / name}" for name in MODELS[1:]),
        f"  - path: {folder / 'models' / MODELS[0]}",
        f"    adapters: {json.dumps({name: str(path) for name, path in adapters.items()})}",
        f"  - path: {folder / 'models' / EMBEDDER}",
        "    kind: embeddings",
    ]
    (folder / "pippin.yaml").write_text("\n".join(lines) + "\n")
    return ["--config", str(folder / "pippin.yaml")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--round", type=float, help="seconds of work between two measurements")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=PLOT)
    given = parser.parse_args()
    length = given.round or max(SHORTEST_ROUND, min(ROUND, given.minutes * 60 / 10))
    with tempfile.TemporaryDirectory(prefix="pippin-soak-") as place:
        folder = Path(place)
        with running_server(folder, *make_models(folder)) as address:
            soak = Soak(address, given.seed)
            asyncio.run(soak.run(given.minutes, length))
        faults = [line for line in (folder / "server.log").read_text().splitlines() if "Traceback" in line]
    write_plot(soak.rests, given.plot)
    print(json.dumps(dict(soak.answers), indent=2))
    wrong = [how for how in soak.answers if how not in ("streamed", "whole", "embedded", "hung up")]
    problems = [*grown(soak.rests), *wrong, *faults]
    print("\n".join(problems) or f"It ended where it began, after {soak.answers.total()} requests.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
