"""Decoding and prompts on a CPU, without HTTP: the kernels, MLX in float32, and llama.cpp, in turns.

python -m benchmarks.cpu_kernels FOLDER [--gguf FILES] [--ways kernels int8 float32] [--rounds 4] [--threads 2]
    [--cpu-time] [--streams 1 16] [--long 20] [--prompt 256]

FOLDER is a model folder, FILES the same weights for llama.cpp, compiled for this CPU as `benchmarks.compare` does it.
Each has a turn in each round.
The speed of decoding is that of the steps by which a long answer is longer than a short one, each the quickest of its
rounds.
`--cpu-time` counts seconds of CPU: on a shared machine, with one thread, neighbours change that least.
"""

import argparse
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers import PEERS, free_port, install, wait_until_up
from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.cpu.blas import accelerate_blas

SHORT, LONG = 4, 20  # steps of an answer
BEFORE = 16  # tokens of each stream's prompt
PROMPT = 256
STREAMS = (1, 16)

WAYS = {
    "kernels": ModelOptions(),
    "int8": ModelOptions(cpu_activations="int8"),
    "float32": ModelOptions(cpu_kernels="off"),
}

Run = Callable[[int, int, int], object]
"""Told streams, tokens of each prompt, and tokens of each answer."""


@dataclass(frozen=True)
class Way:
    run: Run
    cpu: Callable[[], float]  # seconds of CPU so far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--streams", type=int, nargs=2, default=STREAMS)
    parser.add_argument(
        "--long", type=int, default=LONG, help=f"steps of a long answer; a short one has {SHORT}"
    )
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of the prompt that is timed")
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), given.threads)
    with ExitStack() as stack:
        ways = {
            way: Way(on_mlx(given.folder, given.threads, options), time.process_time)
            for way, options in WAYS.items()
            if way in given.ways
        }
        for file in given.gguf:
            ways[file.stem[-16:]] = stack.enter_context(on_llama_cpp(file, given.threads, max(given.streams)))
        measure(given, ways)


def measure(given: argparse.Namespace, ways: dict[str, Way]) -> None:
    jobs = [(streams, BEFORE, steps) for streams in given.streams for steps in (SHORT, given.long)]
    jobs.append((1, given.prompt, 1))
    quickest: dict[tuple[str, tuple[int, int, int]], float] = {}
    for turn in range(given.rounds):
        for job in jobs:
            for way, how in ways.items():
                clock = how.cpu if given.cpu_time else time.perf_counter
                started = clock()
                how.run(*job)
                taken = clock() - started
                quickest[way, job] = min(taken, quickest.get((way, job), taken))
        print(f"round {turn + 1} of {given.rounds}", flush=True)
    names = [f"{streams} stream{'s' if streams > 1 else ''}" for streams in given.streams]
    print(f"{'tokens a second':16}{names[0]:>10}{names[1]:>12}{'prompt':>9}")
    for way in ways:
        speeds = []
        for streams in given.streams:
            short, long = (quickest[way, (streams, BEFORE, steps)] for steps in (SHORT, given.long))
            speeds.append(streams * (given.long - SHORT) / (long - short))
        print(f"{way:16}{speeds[0]:10.1f}{speeds[1]:12.1f}{given.prompt / quickest[way, jobs[-1]]:9.1f}")


def words(serial: int, count: int) -> list[int]:
    return [(serial * 7919 + place * 31) % 40_000 for place in range(count)]


def on_mlx(folder: Path, threads: int, options: ModelOptions) -> Run:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from pippin.engines.device import configure, decide, find_facts
    from pippin.engines.language.model.head import Head
    from pippin.engines.language.model.weights import load_weights

    plan = decide(find_facts(), options)
    configure(plan)
    info = ModelInfo(id=folder.name, kind="language", path=str(folder))
    model, _ = load_weights(info, plan, lambda *_: None, kernel_threads=threads)
    head = Head(model, model(mx.array([[1]])).shape[-1])

    def run(streams: int, before: int, steps: int) -> None:
        cache = make_prompt_cache(model)
        prompts = mx.array([words(stream, before) for stream in range(streams)])
        with head.only([before - 1] * streams):
            tokens = mx.argmax(model(prompts, cache=cache)[:, -1:], axis=-1)
        mx.eval(tokens)
        for _ in range(steps - 1):
            tokens = mx.argmax(model(tokens, cache=cache), axis=-1)
            mx.eval(tokens)

    return run


@contextmanager
def on_llama_cpp(file: Path, threads: int, streams: int) -> Iterator[Way]:
    peer, port = PEERS["llama_cpp_native"], free_port()
    install(peer)
    options = {
        "model": file,
        "port": port,
        "threads": threads,
        "parallel": streams,
        "ctx-size": streams * 2048,
    }
    command = [str(peer.folder / "server" / "llama-server"), "--no-warmup", "--log-disable"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_up(port, process, 300)
            yield Way(asking(f"http://127.0.0.1:{port}/completion"), cpu_of(process.pid))
        finally:
            process.terminate()


def cpu_of(pid: int) -> Callable[[], float]:
    def seconds() -> float:
        used = psutil.Process(pid).cpu_times()
        return float(used.user + used.system)

    return seconds


def asking(address: str) -> Run:
    def ask(stream: int, before: int, steps: int) -> None:
        given = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
        body = json.dumps({"prompt": words(stream, before), "n_predict": steps, **given}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()

    def run(streams: int, before: int, steps: int) -> None:
        asked = [threading.Thread(target=ask, args=(stream, before, steps)) for stream in range(streams)]
        for each in asked:
            each.start()
        for each in asked:
            each.join()

    return run


if __name__ == "__main__":
    main()
