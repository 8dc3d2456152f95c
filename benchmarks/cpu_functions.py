"""What a model takes with exp and its kin as MLX computes them on a CPU, and with numpy's for many numbers at once, in
turns in one process.

python -m benchmarks.cpu_functions --model FOLDER
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

SHAPES = (  # rows, tokens, earlier tokens that they look back at
    *((1, 1, 100), (16, 1, 100), (32, 1, 100), (16, 1, 1600)),
    *((1, 64, 0), (1, 256, 0), (1, 256, 1600), (8, 32, 0)),
)


def past(model: Any, rows: int, tokens: int) -> list[Any]:
    """Caches of rows that all have seen the same."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    for _ in range(tokens // 100):
        mx.eval(model(mx.ones((1, 100), dtype=mx.int32), cache=cache))
    for layer in cache if tokens else []:
        layer.keys, layer.values = (mx.repeat(part, rows, axis=0) for part in (layer.keys, layer.values))
        mx.eval(layer.keys, layer.values)
    return cache


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    accelerate_blas(ModelOptions(), options.threads)
    import mlx.core as mx
    from mlx_lm.utils import load_model

    from pippin.engines.cpu.functions import install

    mx.disable_compile()
    model, _ = load_model(options.model)
    core, fast = vars(mx), vars(mx.fast)
    variants = [(dict(core), dict(fast))]
    install()
    variants.append((dict(core), dict(fast)))
    print("| rows | tokens | after | MLX's ms | numpy ms | ratio | difference |")
    print("|---|---|---|---|---|---|---|")
    for rows, tokens, earlier in SHAPES:
        taken: list[list[float]] = [[] for _ in variants]
        logits = []
        for turn in range(len(variants) * (options.rounds + 1)):
            which = turn % len(variants)
            names, fast_names = variants[which]
            core.update(names)
            fast.update(fast_names)
            cache = past(model, rows, earlier)
            start = time.perf_counter()
            found = model(mx.arange(rows * tokens).reshape(rows, tokens) + 100, cache=cache)
            mx.eval(found)
            if turn >= len(variants):
                taken[which].append(time.perf_counter() - start)
            logits.append(found)
        mlx, numpy = (1000 * statistics.median(each) for each in taken)
        difference = float(mx.abs(logits[0] - logits[1]).max())
        print(
            f"| {rows} | {tokens} | {earlier} | {mlx:.1f} | {numpy:.1f} | {mlx / numpy:.2f} "
            f"| {difference:.1g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
