"""What `--exact` costs on a GPU, as far as a CPU can tell: the host's time for a step in a GPU's order, the operations
that a pass queues, and the bytes of weights, and of keys and values, that it reads.

    python -m benchmarks.exact [--layers 28] [--sequences 1 8] [--steps 60] [--form 4bit] [--model FOLDER]

With 16 bits and without, in turns of some steps, on a narrow random model as a Mac has it, for which Python builds the
same graph as for a wide one; the host's time is `benchmarks.host_time`'s. Bytes are also told of a MODEL, which is
loaded and not run. What products of float32 take is for a GPU to tell (`benchmarks.first_gpu_run`): a CPU has no
products of 16 bits to compare them with.
"""

import argparse
import io
import re
import tempfile
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import msgspec

from benchmarks.host_time import DRAWS, TURN, UNCOUNTED, Measured, quiet, stand_in
from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

WAYS = {"16 bits": False, "exact": True}
PREFIX = 1024  # tokens


def operations(engine: Any) -> int:
    """How many operations the next step queues, with its draw."""
    import mlx.core as mx

    own = mx.async_eval

    def watched(*arrays: Any) -> None:
        written = io.StringIO()
        mx.export_to_dot(written, *arrays)
        counts.append(len(re.findall(r'label ="\w+"', written.getvalue())))
        own(*arrays)

    counts: list[int] = []
    with patch.object(mx, "async_eval", watched):
        engine.step()
    return sum(counts)


def told_bytes(bench: Any) -> str:
    stats, slot = bench.engine.stats(), bench.engine.batch.groups.layout.slot_bytes(PREFIX)
    return f"{stats.weight_bytes / 1e6:.1f} MB of weights, {slot // PREFIX} bytes a token of keys and values"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--form", default="4bit", choices=("bfloat16", "4bit", "mxfp4", "mixed"))
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    accelerate_blas(ModelOptions(), 1)
    import mlx.core as mx
    from tests.as_on_a_mac.mac import Mac
    from tests.engines.language.bench import Bench
    from tests.engines.tiny_models import tiny_model

    from pippin.engines.device import decide

    mx.disable_compile()

    def load(folder: Path, *, exact: bool) -> Any:
        options = ModelOptions(prefix_cache=False, exact=exact)
        plan = decide(Mac().facts, options)
        return Bench(folder, options, msgspec.structs.replace(plan, memory_limit=1 << 32))

    for name, exact in WAYS.items() if asked.model is not None else ():
        print(f"{asked.model.name}, {name}: {told_bytes(load(asked.model, exact=exact))}")
    with tempfile.TemporaryDirectory() as scratch:
        changes: dict[str, Any] = {"num_hidden_layers": asked.layers, "mac": Mac(form=asked.form)}
        folder = tiny_model("qwen3", Path(scratch) / "qwen3", **changes)
        benches = {name: load(folder, exact=exact) for name, exact in WAYS.items()}
        cases = {
            (sequences, name): Measured(bench, sequences, DRAWS["greedy"], [0.005], asked.steps)
            for sequences in asked.sequences
            for name, bench in benches.items()
        }
        stand_in()
        for _ in range(-(-asked.steps // (TURN - UNCOUNTED))):
            for each in cases.values():
                for step in range(TURN):
                    each.step(counts=step >= UNCOUNTED)
        print("| sequences | way | host, ms | quiet, ms | operations |\n|---|---|---|---|---|")
        for (sequences, name), each in cases.items():
            took = f"{median(each.spent) * 1e3:.2f} | {quiet(each.spent) * 1e3:.2f}"
            print(f"| {sequences} | {name} | {took} | {operations(each.engine)} |")
        for name, bench in benches.items():
            print(f"{name}: {told_bytes(bench)}")


if __name__ == "__main__":
    main()
