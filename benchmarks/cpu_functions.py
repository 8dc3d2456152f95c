"""What a model takes with exp and its kin as MLX computes them on a CPU, and with Pippin's, in turns in one process.

python -m benchmarks.cpu_functions --model FOLDER
"""

import argparse
import statistics
import time
from pathlib import Path

from pippin.config.model_options import ModelOptions
from pippin.engines.device import accelerate_blas

SHAPES = ((1, 1), (16, 1), (32, 1), (1, 32), (1, 64), (1, 256), (8, 32))  # rows, tokens
CONTEXT = 100  # tokens that rows of one token look back at


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
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    from pippin.engines.cpu_functions import install

    mx.disable_compile()
    model, _ = load_model(options.model)
    core, fast = vars(mx), vars(mx.fast)
    own = [dict(core), dict(fast)]
    install()
    ours = [dict(core), dict(fast)]
    print("| rows | tokens | MLX's ms | Pippin's ms | ratio | largest difference of logits |")
    print("|---|---|---|---|---|---|")
    for rows, tokens in SHAPES:
        taken: dict[int, list[float]] = {0: [], 1: []}
        logits = []
        for turn in range(2 * (options.rounds + 1)):
            which = turn % 2
            core.update((own, ours)[which][0])
            fast.update((own, ours)[which][1])
            cache = make_prompt_cache(model)
            if tokens == 1:
                mx.eval(model(mx.ones((rows, CONTEXT), dtype=mx.int32), cache=cache))
            start = time.perf_counter()
            found = model(mx.arange(rows * tokens).reshape(rows, tokens) + 100, cache=cache)
            mx.eval(found)
            if turn >= 2:
                taken[which].append(time.perf_counter() - start)
            logits.append(found)
        first, second = (1000 * statistics.median(taken[which]) for which in (0, 1))
        difference = float(mx.abs(logits[0] - logits[1]).max())
        print(
            f"| {rows} | {tokens} | {first:.1f} | {second:.1f} | {first / second:.2f} | {difference:.1g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
