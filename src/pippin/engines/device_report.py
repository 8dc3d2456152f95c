"""What MLX runs on, as one JSON line: `python -m pippin.engines.device_report`, for `pippin doctor`."""

import json
import sys
import time
from importlib.metadata import version

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

ROWS, INNER, COLUMNS = 128, 576, 1536
TRIES = 5


def report() -> dict[str, object]:
    """What a worker would find here."""
    blas = accelerate_blas(ModelOptions(), None)
    import mlx.core as mx  # after the BLAS that is to serve it

    left = mx.random.normal((ROWS, INNER))
    right = mx.random.normal((INNER, COLUMNS))
    mx.eval(left, right)
    seconds = float("inf")
    for _ in range(TRIES):
        started = time.perf_counter()
        mx.eval(left @ right)
        seconds = min(seconds, time.perf_counter() - started)
    return {
        "version": version("mlx"),
        "device": str(mx.default_device()),
        "blas": blas,
        "gigaflops": 2 * ROWS * INNER * COLUMNS / seconds / 1e9,  # of a float32 product of a prompt's size
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report()) + "\n")
