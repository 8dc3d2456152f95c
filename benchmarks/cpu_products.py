"""Products of one matrix with some vectors on the kernels, in CPU time of one thread; versions of the kernels in turns.

    python -m benchmarks.cpu_products [--kernels FOLDER ...] [--weights 4 8] [--vectors 1 2 3 4 6 8 12 16] [--passes 15]

FOLDER holds a built package `pippin_kernels`, as `kernels/` of a clone has after `make kernels`; each runs in its own
process. Shown are milliseconds, the least of the passes, and billions of multiply-adds a second beside those of
numpy's product of two float32 matrices, which is about what the processor can do.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROWS, COLUMNS, GROUP = 8192, 2048, 64
VECTORS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
SORTS = ("4", "8", "bf16", "4 int8")
HERE = Path(__file__).parent.parent / "kernels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=Path, nargs="+", default=[HERE], metavar="FOLDER")
    parser.add_argument("--vectors", type=int, nargs="+", default=VECTORS)
    parser.add_argument("--weights", nargs="+", default=SORTS, choices=SORTS)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer()
        return
    peak = numpy_rate(given.passes)
    print(f"numpy, float32: {peak:.1f} billion multiply-adds a second")
    print("| weights | vectors |" + " ms | of numpy's |" * len(given.kernels) + " last / first |")
    print("|---|---|" + "---|---|" * len(given.kernels) + "---|")
    processes = [started(folder) for folder in given.kernels]
    for sort in given.weights:
        for vectors in given.vectors:
            least = [float("inf")] * len(processes)
            for _ in range(given.passes):
                for index, process in enumerate(processes):
                    least[index] = min(least[index], asked(process, sort, vectors))
            rates = [ROWS * COLUMNS * vectors / seconds / 1e9 / peak for seconds in least]
            cells = [f"{1e3 * seconds:.2f} | {rate:.2f}" for seconds, rate in zip(least, rates, strict=True)]
            print(f"| {sort} | {vectors} | {' | '.join(cells)} | {least[-1] / least[0]:.2f} |", flush=True)
    for process in processes:
        process.communicate()


def numpy_rate(passes: int) -> float:
    """Billions of multiply-adds a second of CPU."""
    size = 1024
    left, right = np.ones((2, size, size), np.float32)
    least = float("inf")
    for _ in range(passes):
        begun = time.process_time()
        left @ right
        least = min(least, time.process_time() - begun)
    return size**3 / least / 1e9


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cpu_products", "--answer"],
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def asked(process: subprocess.Popen[str], sort: str, vectors: int) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([sort, vectors]), file=process.stdin, flush=True)
    return float(process.stdout.readline())


def answer() -> None:
    """Seconds of CPU of each product that a line of the input asks for."""
    from pippin_kernels import Kernels, Matrix

    draw = np.random.default_rng(1)
    exact, rounded = Kernels(1), Kernels(1)
    rounded.round_activations()
    held: dict[str, Matrix] = {}
    for line in sys.stdin:
        sort, vectors = json.loads(line)
        if sort not in held:
            held = {sort: made(sort, draw)}
        kernels = rounded if "int8" in sort else exact
        x = draw.standard_normal((vectors, COLUMNS), np.float32)
        begun = time.thread_time()
        kernels.product(held[sort], x)
        print(time.thread_time() - begun, flush=True)


def made(sort: str, draw: np.random.Generator) -> "Matrix":  # type: ignore[name-defined]  # noqa: F821
    from pippin_kernels import Matrix

    if sort == "bf16":
        numbers = draw.standard_normal((ROWS, COLUMNS), np.float32)
        return Matrix.dense((numbers.view(np.uint32) >> 16).astype(np.uint16))
    bits = int(sort[0])
    words = draw.integers(0, 1 << 32, (ROWS, COLUMNS * bits // 32), np.uint32)
    scales = draw.standard_normal((2, ROWS, COLUMNS // GROUP), np.float32).astype(np.float16)
    return Matrix.packed(words, scales[0], scales[1], bits=bits, group=GROUP)


if __name__ == "__main__":
    main()
