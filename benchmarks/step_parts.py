"""What a step of decoding on the kernels takes beside reading its weights, in seconds of CPU.

    python -m benchmarks.step_parts FOLDER [FOLDER ...] [--steps 24] [--rounds 4]

One stream, one thread. *reading* is what the machine takes to look at as many bytes as a step's weights have, by libc's
memchr over memory that is larger than its caches; *layers* and *head* are the kernels' two calls; *rest* is MLX, numpy
and Python around them. Each figure is the least of its rounds; CPU time hardly depends on what else runs.
"""

import argparse
import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.cpu.blas import accelerate_blas

PROBE = 600 << 20  # bytes


def bandwidth(rounds: int) -> float:
    """Bytes a second that one thread reads."""
    memory = np.ones(PROBE, np.uint8)
    search = ctypes.CDLL(None).memchr
    search.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    quickest = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        search(memory.ctypes.data, 0, PROBE)
        quickest = min(quickest, time.thread_time() - started)
    return PROBE / quickest


@contextmanager
def counted(owner: Any, name: str, spent: Counter[str]) -> Iterator[None]:
    """Within this context, the CPU time of a method adds up in `spent`."""
    method: Callable[..., Any] = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.thread_time()
        found = method(*arguments, **named)
        spent[name] += time.thread_time() - started
        return found

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, method)


def measure(folder: Path, steps: int, rounds: int) -> tuple[int, float, float, float]:
    """Bytes of the weights that a step reads, and least seconds for each step of all, layers and head."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from pippin_kernels import Decoder, Kernels

    from pippin.engines.device import configure, decide, find_facts
    from pippin.engines.language.model.weights import load_weights

    plan = decide(find_facts(), ModelOptions())
    configure(plan)
    info = ModelInfo(id=folder.name, kind="language", path=str(folder))
    model, _ = load_weights(info, plan, lambda *_: None, kernel_threads=1)
    cache = make_prompt_cache(model)
    token = mx.argmax(model(mx.arange(1, 17)[None], cache=cache)[:, -1:], axis=-1)
    found = []
    for _ in range(rounds):
        spent: Counter[str] = Counter()
        with counted(Decoder, "run", spent), counted(Kernels, "product_into", spent):
            started = time.thread_time()
            for _ in range(steps):
                token = mx.argmax(model(token, cache=cache), axis=-1)
                mx.eval(token)
            found.append((time.thread_time() - started, spent["run"], spent["product_into"]))
    whole, layers, head = (min(column) / steps for column in zip(*found, strict=True))
    shape = model._decoder.shape
    untied = model.lm_head._matrix is not shape.embedding
    return model.weight_bytes - (shape.embedding.nbytes if untied else 0), whole, layers, head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), 1)
    print(
        "| model | MB of a step | GB/s | reading ms | step ms | step / reading | layers ms | head ms | rest ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for folder in given.folders:
        speed = bandwidth(given.rounds)
        size, whole, layers, head = measure(folder, given.steps, given.rounds)
        reading = size / speed
        times = [f"{1000 * part:.2f}" for part in (layers, head, whole - layers - head)]
        print(
            f"| {folder.name} | {size / 1e6:.0f} | {speed / 1e9:.1f} | {1000 * reading:.2f} | {1000 * whole:.2f} "
            f"| {whole / reading:.2f} | {' | '.join(times)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
