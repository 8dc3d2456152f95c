"""What the host takes for each step in a GPU's order, and whether a device that takes a given time ever waits for it.

    python -m benchmarks.host_time [--layers 28] [--sequences 1 8 32] [--device 5 10 20] [--steps 60]

A model of so many narrow layers, for which Python builds the same graph as for a wide one. Time is the CPU time of the
engine's thread, so that neither waiting counts nor what other threads compute. The device is made up: it begins a pass
when it is queued and the pass before it is done, and takes the given milliseconds for each. *waits* is how long it had
nothing to do in each step. Not counted: what `mx.async_eval` takes, since a GPU encodes there and a CPU computes, and
the worker's messages to the server. *bare* is the same for mlx-lm's model alone: its own caches, and argmax.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.cpu.blas import accelerate_blas

PROMPT = 40  # tokens
DRAWS = {
    "greedy": Sampling(temperature=0),
    "top-k and top-p": Sampling(temperature=0.7, top_p=0.8, top_k=20),
}


@dataclass
class Device:
    """A stream that takes so many seconds for each pass, beside a host whose clock is its CPU time."""

    seconds: float
    host: float = 0.0  # the host's time, with waits for this device
    counted: float = 0.0  # the thread's CPU time up to which `host` counts
    done: float = 0.0  # when the last queued pass ends
    drawn: float = 0.0  # when the pass of the last draw ends
    idle: float = 0.0
    built: bool = False  # a pass is built that is not queued yet
    encoding: float = 0.0  # CPU time in `mx.async_eval`, which does not count

    def now(self) -> float:
        return time.thread_time() - self.encoding

    def encoded(self, encode: Callable[..., None]) -> Callable[..., None]:
        def encoded(*arrays: Any) -> None:
            begun = time.thread_time()
            encode(*arrays)
            self.encoding += time.thread_time() - begun

        return encoded

    def tick(self) -> None:
        now = self.now()
        self.host += now - self.counted
        self.counted = now

    def build_pass(self) -> None:
        self.built = True

    def queue_pass(self) -> None:
        if not self.built:
            return
        self.built = False
        self.tick()
        self.idle += max(0.0, self.host - self.done)
        self.done = max(self.host, self.done) + self.seconds

    def queue_draw(self) -> None:
        self.drawn = self.done

    def wait(self) -> None:
        self.tick()
        self.host = max(self.host, self.drawn)


def watched(batch: Any, device: Device) -> None:
    """Have the device told of what the batch queues and waits for."""

    def around(name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        own = getattr(batch, name)

        def called(**given: Any) -> Any:
            before()
            found = own(**given)
            after()
            return found

        setattr(batch, name, called)

    def nothing() -> None:
        pass

    around("forward", device.build_pass, nothing)
    around("queue", nothing, device.queue_pass)
    around("sample", nothing, device.queue_draw)
    around("read", device.wait, nothing)


def measure(
    bench: Any, sequences: int, sampling: Sampling, seconds: float, steps: int
) -> tuple[float, float]:
    """The host's median seconds for each step, and the mean that the device waits."""
    import mlx.core as mx

    engine = bench.new_engine(bench.plan)
    for row in range(sequences):
        prompt = tuple((row * 31 + place * 7) % 250 + 1 for place in range(PROMPT))
        engine.submit(bench.job(f"r{row}", prompt, steps * 4, sampling=sampling, ignore_eos=True))
    while len(engine.batch.running) < sequences:
        engine.step()
    device = Device(seconds)
    watched(engine.batch, device)
    with patch.object(mx, "async_eval", device.encoded(mx.async_eval)):
        for _ in range(5):
            engine.step()
        device.idle, spent = 0.0, []
        for _ in range(steps):
            begun = device.now()
            engine.step()
            spent.append(device.now() - begun)
    engine.close()
    return median(spent), device.idle / steps


def bare(model: Any, steps: int) -> float:
    """The median CPU seconds in which the graph of one token's pass is built, without an engine."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache, token, spent = make_prompt_cache(model), mx.array([[1]]), []
    for _ in range(steps):
        begun = time.thread_time()
        token = mx.argmax(model(token, cache=cache), axis=-1)
        spent.append(time.thread_time() - begun)
        mx.eval(token)
    return median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--device", type=float, nargs="+", default=[5, 10, 20], help="milliseconds of a pass")
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    accelerate_blas(ModelOptions(), 1)
    import mlx.core as mx
    from tests.engines.language.bench import Bench
    from tests.engines.tiny_models import tiny_model

    mx.disable_compile()
    print("| sequences | draw | device, ms | host, ms | bare, ms | waits, ms |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = tiny_model("qwen3", Path(scratch) / "qwen3", num_hidden_layers=asked.layers)
        bench = Bench(folder, ModelOptions(prefix_cache=False, max_num_seqs=max(asked.sequences)))
        for sequences in asked.sequences:
            for name, sampling in DRAWS.items():
                for milliseconds in asked.device:
                    host, waits = measure(bench, sequences, sampling, milliseconds / 1e3, asked.steps)
                    figures = milliseconds, host * 1e3, bare(bench.model, asked.steps) * 1e3, waits * 1e3
                    told = " | ".join(f"{figure:.2f}" for figure in figures)
                    print(f"| {sequences} | {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
