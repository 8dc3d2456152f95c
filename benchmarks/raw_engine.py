"""Pippin's engine without HTTP or processes beside the raw models: the ceiling of what a server can give.

    python -m benchmarks.raw_engine --model FOLDER --rows 1 8 16 32

For each number of rows, decoding `--tokens` tokens greedily after short prompts, in turns:
raw: mlx-lm's model over one batched KV cache, nothing but the step and an argmax;
lm: mlx-lm's own BatchGenerator; pippin: the engine as the worker drives it. Wall and CPU milliseconds per step.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text
from pippin.core.events import Finished
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.base import Job
from pippin.engines.cpu.blas import accelerate_blas

Timed = tuple[float, float]  # wall and CPU seconds for each step

PROMPT = "Write a long story about the mountain number"


def timed(steps: int, work: Callable[[], None]) -> Timed:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def raw(model: Any, prompts: list[list[int]], tokens: int) -> Timed:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    shortest = min(len(prompt) for prompt in prompts)
    last = mx.argmax(model(mx.array([prompt[:shortest] for prompt in prompts]), cache=cache)[:, -1:], axis=-1)
    mx.eval(last)

    def work() -> None:
        token = last
        for _ in range(tokens):
            following = mx.argmax(model(token, cache=cache), axis=-1)
            mx.async_eval(following)
            token.tolist()
            token = following
        mx.eval(token)

    return timed(tokens, work)


def lm(model: Any, prompts: list[list[int]], tokens: int) -> Timed:
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(model, max_tokens=tokens + 2, stop_tokens=[])
    generator.insert(prompts)
    while not generator.next()[1]:
        pass
    return timed(tokens, lambda: [generator.next() for _ in range(tokens)] and None)


def pippin(engine: Any, preparer: Any, rows: int, tokens: int) -> Timed:
    def job(number: int) -> Job:
        request = GenerationRequest(
            model="bench",
            messages=(Message("user", (Text(f"{PROMPT} {number}"),)),),
            sampling=Sampling(temperature=0.0),
            max_tokens=tokens + 8,
            ignore_eos=True,
        )
        prepared = preparer.prepare(f"{time.monotonic_ns()}-{number}", Generate(request))
        assert not isinstance(prepared, tuple)
        return prepared

    for number in range(rows):
        engine.submit(job(number))
    while engine.stats().batch_size < rows:
        engine.step()
    engine.step()
    timing = timed(tokens, lambda: [engine.step() for _ in range(tokens)] and None)
    finished = 0
    while finished < rows:
        finished += sum(isinstance(event, Finished) for _, event in engine.step())
    return timing


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of the BLAS")
    options = parser.parse_args()
    accelerate_blas(ModelOptions(), options.threads)
    from pippin.engines.language import open_engine, open_preparer  # these import mlx

    info = ModelInfo(id="bench", kind="language", path=str(options.model))
    # The raw model and mlx-lm's generator need the model as mlx-lm makes it.
    settings = msgspec.to_builtins(ModelOptions(cpu_kernels="off"))
    spec = WorkerSpec(info=info, options=settings, threads=options.threads)
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, lambda *_: None)
    model = engine.model
    print(
        "| rows | raw ms | lm ms | pippin ms | pippin/raw | pippin/lm | CPU raw ms | CPU lm ms | CPU pippin ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for rows in options.rows:
        prompts = [[1, *range(100 + row, 130 + row)] for row in range(rows)]
        runs: dict[str, list[Timed]] = {"raw": [], "lm": [], "pippin": []}
        for _ in range(options.rounds):
            runs["raw"].append(raw(model, prompts, options.tokens))
            runs["lm"].append(lm(model, prompts, options.tokens))
            runs["pippin"].append(pippin(engine, preparer, rows, options.tokens))
        wall = {name: statistics.median(run[0] for run in found) * 1000 for name, found in runs.items()}
        cpu = {name: statistics.median(run[1] for run in found) * 1000 for name, found in runs.items()}
        ratios = f"{wall['raw'] / wall['pippin']:.2f} | {wall['lm'] / wall['pippin']:.2f}"
        print(
            f"| {rows} | {wall['raw']:.1f} | {wall['lm']:.1f} | {wall['pippin']:.1f} | {ratios} "
            f"| {cpu['raw']:.1f} | {cpu['lm']:.1f} | {cpu['pippin']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
