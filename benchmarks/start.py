"""What a start takes: of a server up to its first token, and of a worker beside nothing but reading the same files.

    python -m benchmarks.start --model FOLDER --rounds 3 [--source FOLDER]

From `pippin serve` to the first token that a client gets, and the CPU time of both processes until then, which hardly
depends on what else the machine does; `--source` also serves with the code of another checkout, in turns. Then a
worker's stages, each figure in a process of its own, whose memory is new, in turns: the files read into memory; the
weights loaded (read, made the type that the device runs, evaluated); and all up to an engine that could answer.
"""

import argparse
import compileall
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.peers import free_port
from pippin.config.worker_environment import worker_environment

ROOT = Path(__file__).parent.parent
ASKED = json.dumps(
    {"model": "bench", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello."}]}
).encode()
READ, STAGES = "nothing but reading the files", ("imports", "tokenizer", "weights", "probing, warm-up")


def serve(source: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds to the first token, and CPU seconds of the server and of its worker."""
    port = free_port()
    command = [sys.executable, "-m", "pippin", "serve", str(folder), "--port", str(port)]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--served-model-name", "bench"],
        env=dict(os.environ, HF_HUB_OFFLINE="1", PYTHONPATH=str(source / "src")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.005)
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        asked = urllib.request.Request(url, ASKED, {"content-type": "application/json"})
        urllib.request.urlopen(asked, timeout=300).read()
        seconds = time.monotonic() - started
        server = psutil.Process(process.pid)
        [worker] = server.children()
        return seconds, sum(server.cpu_times()[:2]), sum(worker.cpu_times()[:2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def compare(sources: list[Path], folder: Path, rounds: int) -> None:
    for source in sources:  # bytecode is there before the first start of what is installed, too
        compileall.compile_dir(source / "src", quiet=1)
    found = [(place, serve(source, folder)) for _ in range(rounds) for place, source in enumerate(sources)]
    print("| code | first token s | server CPU s | worker CPU s |\n|---|---|---|---|")
    for place, source in enumerate(sources):
        columns = zip(*(times for number, times in found if number == place), strict=True)
        told = " | ".join(f"{statistics.median(column):.2f} ({min(column):.2f})" for column in columns)
        print(f"| {source.name} | {told} |")


def read(folder: Path) -> dict[str, float]:
    started = time.monotonic()
    held = [path.read_bytes() for path in sorted(folder.glob("model*.safetensors"))]
    assert held
    return {READ: time.monotonic() - started}


def start(folder: Path) -> dict[str, float]:
    laps = [time.monotonic()]

    def lap() -> None:
        laps.append(time.monotonic())

    from pippin.config.options.model import ModelOptions
    from pippin.core.models import ModelInfo, WorkerSpec
    from pippin.engines.cpu.blas import accelerate_blas

    options = ModelOptions()
    accelerate_blas(options, None)
    from pippin.engines.device import configure, decide, find_facts
    from pippin.engines.language.loading.asked import Asked
    from pippin.engines.language.loading.engine import build_engine
    from pippin.engines.language.model.weights import load_weights
    from pippin.engines.language.prompt import preparer

    lap()
    info = ModelInfo(id="bench", kind="language", path=str(folder))
    prepared = preparer.open_preparer(WorkerSpec(info=info))
    lap()
    plan = decide(find_facts(), options)
    configure(plan)
    threads = os.cpu_count()
    model, _ = load_weights(info, plan, lambda *_: None, kernel_threads=threads)
    lap()
    build_engine(Asked(model, prepared.tokenizer, options, plan, folder, threads))
    lap()
    return {name: after - before for name, before, after in zip(STAGES, laps, laps[1:], strict=False)}


def apart(what: str, folder: Path) -> dict[str, float]:
    """As `read` or `start`, in a process as a worker's is."""
    command = [sys.executable, "-m", "benchmarks.start", "--model", str(folder), "--only", what]
    environment = worker_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent.parent)
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--source", type=Path, action="append", default=[], help="another checkout")
    parser.add_argument("--only", choices=("read", "start"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps({"read": read, "start": start}[options.only](options.model)))
        return
    compare([ROOT, *(source.resolve() for source in options.source)], options.model.resolve(), options.rounds)
    found: dict[str, list[float]] = defaultdict(list)
    for turn in range(options.rounds):
        for what in ("read", "start") if turn % 2 == 0 else ("start", "read"):
            for name, seconds in apart(what, options.model).items():
                found[name].append(seconds)
    print("| stage | median ms | least | most |\n|---|---|---|---|")
    for name in (READ, *STAGES):
        values = [1000 * seconds for seconds in found[name]]
        print(f"| {name} | {statistics.median(values):.0f} | {min(values):.0f} | {max(values):.0f} |")


if __name__ == "__main__":
    main()
