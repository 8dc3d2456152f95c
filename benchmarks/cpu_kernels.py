"""Decoding and prompts on a CPU, without HTTP: the kernels, MLX in float32, and llama.cpp, in turns.

python -m benchmarks.cpu_kernels FOLDER [--gguf FILE] [--rounds 5] [--threads 2]

FOLDER is a model folder, FILE the same weights for llama.cpp (which needs xllamacpp). Each has a turn in each round;
the best and the median of the rounds are told. llama.cpp's figures are its server's own, of which those of 16 streams
are summed; its sampler is in them, and argmax in the others'.
"""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.cpu.blas import accelerate_blas

STEPS = {1: 32, 16: 8}  # of a turn, by streams
BEFORE = 16  # tokens of each stream's prompt
PROMPT = 256

Turn = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), given.threads)
    ways: dict[str, dict[str, Turn]] = {
        "kernels": on_mlx(given.folder, given.threads, ModelOptions()),
        "float32": on_mlx(given.folder, given.threads, ModelOptions(cpu_kernels="off")),
    }
    if given.gguf is not None:
        ways["llama.cpp"] = on_llama_cpp(given.gguf, given.threads)
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(given.rounds):
        for what in ("1 stream", "16 streams", "prompt"):
            for way, turns in ways.items():
                found.setdefault((what, way), []).append(turns[what]())
        last = ", ".join(f"{what} {way} {speeds[-1]:.0f}" for (what, way), speeds in found.items())
        print(f"round {turn + 1}: {last}", flush=True)
    print("tokens/s: best (median) of", given.rounds, "rounds")
    for (what, way), speeds in found.items():
        print(f"{what:12}{way:12}{max(speeds):8.0f} ({median(speeds):.0f})")


def on_mlx(folder: Path, threads: int, options: ModelOptions) -> dict[str, Turn]:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from pippin.engines.device import configure, decide, find_facts
    from pippin.engines.language.kv_cache.layout import CacheLayout  # noqa: F401 (the caches' room is whole first)
    from pippin.engines.language.model.head import Head
    from pippin.engines.language.model.weights import load_weights

    plan = decide(find_facts(), options)
    configure(plan)
    info = ModelInfo(id=folder.name, kind="language", path=str(folder))
    model, _ = load_weights(info, plan, lambda *_: None, trust_remote_code=False, kernel_threads=threads)
    vocabulary = model(mx.array([[1]])).shape[-1]
    head = Head(model, vocabulary)

    def decode(streams: int) -> float:
        cache = make_prompt_cache(model)
        prompt = mx.array(
            [[(row * 31 + place * 7) % 1000 for place in range(BEFORE)] for row in range(streams)]
        )
        tokens = mx.argmax(model(prompt, cache=cache)[:, -1:], axis=-1)
        mx.eval(tokens)
        started = time.perf_counter()
        for _ in range(STEPS[streams]):
            tokens = mx.argmax(model(tokens, cache=cache)[:, -1:], axis=-1)
            mx.eval(tokens)
        return streams * STEPS[streams] / (time.perf_counter() - started)

    def prompt() -> float:
        cache = make_prompt_cache(model)
        tokens = mx.array([[place * 7919 % vocabulary for place in range(PROMPT)]])
        started = time.perf_counter()
        with head.only([PROMPT - 1]):
            mx.eval(model(tokens, cache=cache))
        return PROMPT / (time.perf_counter() - started)

    return {"1 stream": lambda: decode(1), "16 streams": lambda: decode(16), "prompt": prompt}


def on_llama_cpp(file: Path, threads: int) -> dict[str, Turn]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_parallel = 16
    params.n_ctx = 16 * 2048
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    serials: Iterator[int] = iter(range(1 << 30))

    def ask(tokens: int, words: int) -> dict[str, Any]:
        body = {
            "prompt": [(next(serials) * 7919 + place * 31) % 40_000 for place in range(words)],
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer = server.handle_completions(body)
        timings: dict[str, Any] = (json.loads(answer) if isinstance(answer, (str, bytes)) else answer)[
            "timings"
        ]
        return timings

    def decode(streams: int) -> float:
        speeds: list[float] = []
        threads = [
            threading.Thread(
                target=lambda: speeds.append(ask(STEPS[streams], BEFORE)["predicted_per_second"])
            )
            for _ in range(streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(speeds)

    return {
        "1 stream": lambda: decode(1),
        "16 streams": lambda: decode(16),
        "prompt": lambda: float(ask(1, PROMPT)["prompt_per_second"]),
    }


if __name__ == "__main__":
    main()
