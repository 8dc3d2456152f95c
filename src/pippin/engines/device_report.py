"""What MLX runs on, as one JSON line: `python -m pippin.engines.device_report`, for `pippin doctor`."""

import json
import sys
import time

import mlx.core as mx

ROWS, INNER, COLUMNS = 128, 576, 1536


def gigaflops() -> float:
    """Speed of one float32 product of a prompt's size, the best of a few."""
    left = mx.random.normal((ROWS, INNER))
    right = mx.random.normal((INNER, COLUMNS))
    mx.eval(left, right)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        mx.eval(left @ right)
        best = min(best, time.perf_counter() - started)
    return 2 * ROWS * INNER * COLUMNS / best / 1e9


if __name__ == "__main__":
    report = {"version": mx.__version__, "device": str(mx.default_device()), "gigaflops": gigaflops()}
    sys.stdout.write(json.dumps(report) + "\n")
