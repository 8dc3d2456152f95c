"""What a worker's start is made of, beside nothing but reading the same files.

    python -m benchmarks.start --model FOLDER --rounds 3

Each figure is of a process of its own, whose memory is new, in turns: the files read into memory; the weights loaded
(read, made the type that the device runs, evaluated); and all stages up to an engine that could answer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from pippin.config.worker_environment import worker_environment

READ, STAGES = "nothing but reading the files", ("imports", "tokenizer", "weights", "probing, warm-up")


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
    from pippin.engines.language.loading.engine import build_engine
    from pippin.engines.language.model.weights import load_weights
    from pippin.engines.language.prompt import preparer

    lap()
    info = ModelInfo(id="bench", kind="language", path=str(folder))
    prepared = preparer.open_preparer(WorkerSpec(info=info))
    lap()
    plan = decide(find_facts(), options)
    configure(plan)
    model, _ = load_weights(info, plan, lambda *_: None)
    lap()
    build_engine(model, prepared.tokenizer, options, plan, folder=folder)
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
    parser.add_argument("--only", choices=("read", "start"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps({"read": read, "start": start}[options.only](options.model)))
        return
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
