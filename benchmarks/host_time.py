"""What the host takes for each step in a GPU's order, and whether a device that takes a given time ever waits for it.

    python -m benchmarks.host_time [--layers 28] [--sequences 1 8 32] [--device 5 10 20] [--steps 60]

A model of so many narrow layers, for which Python builds the same graph as for a wide one, and sequences of different
lengths. Time is the CPU time of the engine's thread, so that neither waiting counts nor what other threads compute.
Norms, rotations and attention are stand-ins of one operation each, as a GPU has them: for a CPU, MLX builds ten or more
for each. The device is made up: it begins a pass when it is queued and the pass before it is done, and takes the given
milliseconds for each. *waits* is the median of how long it had nothing to do in a step, *waiting* the part of the steps
in which it had. Not counted: what `mx.async_eval` takes, since a GPU encodes there and a CPU computes, and the writing
of a step's frame to the server; making it is. *bare* is the same for mlx-lm's model alone: its own caches, and argmax.

All numbers of sequences are measured in turns of some steps, so that what else runs on the machine disturbs all alike;
the first steps of a turn, which find the others' data in the core's caches, are not counted. *quiet* is the tenth of
the steps that took least: beside other programs a step takes up to 1.8 times as much CPU time. So each step lies
between two runs of a loop that does always the same, and *alone* is *waiting* among the steps beside which both took
little.
"""

import argparse
import gc
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.link import Output, frame
from pippin.core.requests import Sampling
from pippin.engines.cpu.blas import accelerate_blas

PROMPT = 40  # tokens
TURN, UNCOUNTED = 12, 2  # steps
LOOP = 1000  # rounds, which take about 50 µs
LITTLE = 1.2  # times the least that the loop takes
DRAWS = {
    "greedy": Sampling(temperature=0),
    "top-k and top-p": Sampling(temperature=0.7, top_p=0.8, top_k=20),
}


@dataclass
class Device:
    """A stream that takes so many seconds for each pass, beside a host whose clock is its CPU time."""

    seconds: float
    host: float = 0.0  # the host's time, with waits for this device
    done: float = 0.0  # when the last queued pass ends
    drawn: float = 0.0  # when the pass of the last draw ends
    idle: float = 0.0
    built: bool = False  # a pass is built that is not queued yet

    def resume(self, now: Callable[[], float]) -> None:
        """The host goes on, by this clock."""
        self._now, self._counted = now, now()

    def tick(self) -> None:
        now = self._now()
        self.host += now - self._counted
        self._counted = now

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


def watched(batch: Any, devices: list[Device]) -> None:
    """Have the devices told of what the batch queues and waits for."""

    def around(name: str, before: Callable[[Device], None], after: Callable[[Device], None]) -> None:
        own = getattr(batch, name)

        def called(**given: Any) -> Any:
            for device in devices:
                before(device)
            found = own(**given)
            for device in devices:
                # A pass may be built alone, and queued behind the read.
                device.built = device.built or name == "forward"
                if given.get("queues", True):
                    after(device)
            return found

        setattr(batch, name, called)

    def nothing(_: Device) -> None:
        pass

    around("forward", nothing, Device.queue_pass)
    around("queue", nothing, Device.queue_pass)
    around("sample", nothing, Device.queue_draw)
    around("read", Device.wait, nothing)


class Measured:
    """An engine with so many sequences that decode, beside devices of different speed."""

    def __init__(
        self, bench: Any, sequences: int, sampling: Sampling, seconds: list[float], steps: int
    ) -> None:
        self.engine = bench.new_engine(bench.plan)
        for row in range(sequences):
            prompt = tuple((row * 31 + place * 7) % 250 + 1 for place in range(PROMPT + row))
            job = bench.job(f"r{row}", prompt, steps * 2 + 64, sampling=sampling, ignore_eos=True)
            self.engine.submit(job)
        while len(self.engine.batch.running) < sequences:
            self.engine.step()
        # Its trial of the other order tells of copies on a real device, and lets this one wait.
        self.engine.decoding.queueing.observe = lambda seconds: None
        self.devices = [Device(each) for each in seconds]
        self.encode = msgspec.msgpack.Encoder().encode
        self.spent: list[float] = []
        self.beside: list[float] = []  # what the loop took, at worst, around the step and the one before
        self.loops: deque[float] = deque(maxlen=4)
        self.waits: list[list[float]] = [[] for _ in seconds]
        watched(self.engine.batch, self.devices)

    def step(self, *, counts: bool) -> None:
        import mlx.core as mx

        before = [device.idle for device in self.devices]
        own, encoding = mx.async_eval, 0.0

        def encode(*arrays: Any) -> None:
            nonlocal encoding
            begun = time.thread_time()
            own(*arrays)
            # A GPU computes beside the host, and takes nothing of its cores.
            mx.synchronize()
            encoding += time.thread_time() - begun

        self.loops.append(loop())
        begun = time.thread_time()
        for device in self.devices:
            device.resume(lambda: time.thread_time() - encoding)
        with patch.object(mx, "async_eval", encode):
            frame(self.encode(Output(self.engine.step())))
        spent = time.thread_time() - begun - encoding
        for device, waits, idle in zip(self.devices, self.waits, before, strict=True):
            device.tick()
            if counts:
                waits.append(device.idle - idle)
        self.loops.append(loop())
        if counts:
            self.spent.append(spent)
            self.beside.append(max(self.loops))


def loop() -> float:
    """The CPU seconds of a loop that does always the same."""
    begun = time.thread_time()
    sum(number * number % 7 for number in range(LOOP))
    return time.thread_time() - begun


def bare(model: Any, cache: Any, token: Any) -> tuple[Any, float]:
    """The next token, and the CPU seconds in which the graph of its pass is built, without an engine."""
    import mlx.core as mx

    begun = time.thread_time()
    token = mx.argmax(model(token, cache=cache), axis=-1)
    spent = time.thread_time() - begun
    mx.eval(token)
    return token, spent


def quiet(seconds: list[float]) -> float:
    """What the tenth of the steps that took least took."""
    return sorted(seconds)[len(seconds) // 10]


def stand_in() -> None:
    """Have MLX build one operation, which computes something else, for each that a GPU has a kernel for."""
    import mlx.core as mx

    def of_first(x: Any, *_: Any, **__: Any) -> Any:
        return mx.abs(x)

    for name in ("rms_norm", "layer_norm", "rope", "scaled_dot_product_attention"):
        setattr(mx.fast, name, of_first)


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
    from mlx_lm.models.cache import make_prompt_cache
    from tests.engines.language.bench import Bench
    from tests.engines.tiny_models import tiny_model

    from pippin.engines.language.model.weights import keep_at_hand

    mx.disable_compile()
    seconds = [milliseconds / 1e3 for milliseconds in asked.device]
    with tempfile.TemporaryDirectory() as scratch:
        folder = tiny_model("qwen3", Path(scratch) / "qwen3", num_hidden_layers=asked.layers)
        bench = Bench(folder, ModelOptions(prefix_cache=False, max_num_seqs=max(asked.sequences)))
        cases = {
            (sequences, name): Measured(bench, sequences, sampling, seconds, asked.steps)
            for sequences in asked.sequences
            for name, sampling in DRAWS.items()
        }
        keep_at_hand(bench.model)
        gc.collect()
        gc.freeze()  # as a worker does once its model is loaded
        stand_in()  # once the trials of the loads are over
        cache, token, alone = make_prompt_cache(bench.model), mx.array([[1]]), []
        for _ in range(-(-asked.steps // (TURN - UNCOUNTED))):
            for each in cases.values():
                for step in range(TURN):
                    each.step(counts=step >= UNCOUNTED)
            for step in range(TURN):
                token, spent = bare(bench.model, cache, token)
                alone += [spent] if step >= UNCOUNTED else []
    print(f"bare: {median(alone) * 1e3:.2f} ms, quiet {quiet(alone) * 1e3:.2f} ms\n")
    little = LITTLE * min(min(each.beside) for each in cases.values())
    print("| sequences | draw | host, ms | quiet, ms | device, ms | waits, ms | waiting | alone |")
    print("|---|---|---|---|---|---|---|---|")
    for (sequences, name), each in cases.items():
        for milliseconds, waits in zip(asked.device, each.waits, strict=True):
            waiting = sum(wait > 0 for wait in waits) / len(waits)
            left = [wait > 0 for wait, beside in zip(waits, each.beside, strict=True) if beside <= little]
            host, least, idle = (
                took * 1e3 for took in (median(each.spent), quiet(each.spent), median(waits))
            )
            took = f"{host:.2f} | {least:.2f} | {milliseconds:g} | {idle:.2f} | {waiting:.0%}"
            print(f"| {sequences} | {name} | {took} | {sum(left)} of {len(left)} |")


if __name__ == "__main__":
    main()
