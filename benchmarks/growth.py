"""How cost grows with the prompt, with what is cached of it, with the clients, and with the size of the cache.

    python -m benchmarks.growth --model FOLDER [--rounds 3]

One engine, without HTTP or processes. Prints the figures and writes them to a JSON file under benchmarks/results/,
which `python -m benchmarks.plots` draws. Each figure is the median of the rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.raw_engine import pippin as decode
from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished, PartDelta
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.cpu.blas import accelerate_blas
from pippin.engines.language.prefix_cache.cache import PrefixTree

RESULTS = Path(__file__).parent / "results"
Points = list[tuple[int, float]]


class Asker:
    """One engine, asked one prompt at a time."""

    def __init__(self, model: Path, threads: int | None = None, **options: Any) -> None:
        accelerate_blas(ModelOptions(), threads)
        from pippin.engines.language import open_engine, open_preparer  # these import mlx

        info = ModelInfo(id="bench", kind="language", path=str(model))
        spec = WorkerSpec(info=info, options=msgspec.to_builtins(ModelOptions(**options)), threads=threads)
        self.preparer: Any = open_preparer(spec)
        self.engine: Any = open_engine(spec, self.preparer, lambda *_: None)
        self.asked = 0

    def job(self, name: str, prompt: Sequence[int], tokens: int) -> Any:
        """For an answer of so many tokens."""
        request = GenerationRequest(
            model="bench",
            prompt=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            max_tokens=tokens,
            ignore_eos=True,
        )
        return self.preparer.prepare(name, Generate(request))

    def first_token(self, prompt: Sequence[int]) -> tuple[float, int]:
        """Seconds until the first token is there, and how much of the prompt was cached."""
        self.asked += 1
        job = self.job(f"r{self.asked}", prompt, 2)
        started = time.perf_counter()
        self.engine.submit(job)
        first, cached = 0.0, 0
        while self.engine.busy:
            for _, event in self.engine.step():
                if isinstance(event, (PartDelta, Finished)):
                    first = first or time.perf_counter() - started
                if isinstance(event, Finished):
                    cached = event.usage.cached_tokens
        return first, cached

    def forget(self) -> None:
        self.engine.clear_cache(prefixes_only=True, disk=False)


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    return [100 + (place * 7 + seed * 31) % 20000 for place in range(tokens)]


def median(rounds: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(rounds))


def by_prompt(asker: Asker, lengths: Sequence[int], rounds: int) -> Points:
    """Seconds to the first token of a prompt that nobody knows."""

    def cold(length: int) -> float:
        asker.forget()
        return asker.first_token(prompt_of(length))[0]

    return [(length, median(rounds, lambda length=length: cold(length))) for length in lengths]  # type: ignore[misc]


def by_cached(asker: Asker, lengths: Sequence[int], rounds: int) -> Points:
    """Seconds to the first token of a known prompt with 16 new tokens."""
    found = []
    for length in lengths:
        asker.forget()
        asker.first_token(prompt_of(length))
        times = []
        for turn in range(rounds):
            seconds, cached = asker.first_token([*prompt_of(length), *prompt_of(16, seed=turn + 1)])
            assert cached >= length - 32
            times.append(seconds)
        found.append((length, statistics.median(times)))
    return found


def by_clients(asker: Asker, rows: Sequence[int], rounds: int, tokens: int = 24) -> Points:
    """Seconds for a step of decoding."""
    found = []
    for count in rows:
        times = [decode(asker.engine, asker.preparer, count, tokens)[0] for _ in range(rounds)]
        found.append((count, statistics.median(times)))
    return found


def by_tree(sizes: Sequence[int], rounds: int, prompt: int = 1500, block: int = 16) -> Points:
    """Seconds to look a known prompt up in a tree of so many blocks; no arrays."""
    found = []
    for blocks in sizes:
        tree = PrefixTree(block, 1 << 60)
        seed = 0
        while len(tree.nodes) < blocks:
            tokens, path = prompt_of(prompt, seed), []  # type: ignore[var-annotated]
            for start in range(0, prompt - block, block):
                tree.add(path, b"", tuple(tokens[start : start + block]), None, 1)
            seed += 1

        def look(tree: PrefixTree = tree) -> float:
            started = time.perf_counter()
            assert tree.path(b"", prompt_of(prompt))
            return time.perf_counter() - started

        found.append((len(tree.nodes), median(max(rounds, 5), look)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096, 8000])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--blocks", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--threads", type=int, help="of the BLAS")
    options = parser.parse_args()
    asker = Asker(options.model, options.threads, cache_memory_mb=2048)
    found: dict[str, Points] = {}
    measures: dict[str, Callable[[], Points]] = {
        "prompt": lambda: by_prompt(asker, options.lengths, options.rounds),
        "cached": lambda: by_cached(asker, options.lengths, options.rounds),
        "clients": lambda: by_clients(asker, options.rows, options.rounds),
        "tree": lambda: by_tree(options.blocks, options.rounds),
    }
    for name, measure in measures.items():
        found[name] = measure()
        print(f"{name}: " + ", ".join(f"{x}: {1000 * y:.3g} ms" for x, y in found[name]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"growth-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(found))
    print(path)


if __name__ == "__main__":
    main()
