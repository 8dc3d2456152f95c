"""The first quarter of an hour on a GPU: what only it can tell, in one file that a person can send.

    make first-gpu-run        or    python -m benchmarks.first_gpu_run [--report FILE] [--seconds 460] [--small]

Parts, each in a process of its own, which ends when its share of the time is over: *facts* of the machine and what
follows from them, *operations* that raise or give no number, *trials* of small models with their margins, *greedy*
answers alone and in a batch, *copies* of the KV cache when the host goes on, *speed* beside mlx-lm, what *exact*
answers cost (`--exact`), and the engine's *tests*. It writes lines of JSON. `--small` is for a try without a GPU.
Nothing is fetched: the models are random.

What is good: operations without `bad`; trials with `batch` true and differences far below their tolerance; in `copies`
a `peak_over_active` that is alike with and without `overlaps`, and less `ms_per_step` with; speed of mlx-lm at least.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Line = dict[str, Any]
PARTS = {
    "facts": 0.05,
    "operations": 0.22,
    "trials": 0.35,
    "greedy": 0.45,
    "copies": 0.55,
    "speed": 0.7,
    "exact": 0.78,
    "tests": 1.0,
}
"""By which share of the whole time each part ends."""
EXACT = {"MLX_ENABLE_TF32": "0"}
"""What workers have MLX read once, with its first product. Else float32 products of several rows are rounded to 10 bits
on some GPUs, and tests that compare in float32 fail."""
MODULE = "benchmarks.gpu_parts"
GRACE = 8.0  # seconds after which a part that has not ended in time is ended
MOST_WORDS = 500


def in_process(name: str, seconds: float, small: bool) -> Iterator[Line]:
    """A part of so many seconds, in a process of its own: one that dies or hangs leaves the others, and so does an MLX
    that cannot be imported."""
    command = [sys.executable, "-m", MODULE, name, "--seconds", str(seconds)]
    command += ["--small"] if small else []
    variables = os.environ | (EXACT if name in ("exact", "tests") else {})
    with tempfile.TemporaryFile() as lines, tempfile.TemporaryFile() as words:
        child = subprocess.Popen(command, env=variables, stdout=lines, stderr=words)
        ended: int | str
        try:
            ended = child.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            ended = "time"
            with suppress(subprocess.TimeoutExpired):  # the driver of a GPU may hold it
                child.wait(1)
        for line in said(lines):
            yield {"part": name, **read(line)}
        if ended:
            yield {"part": name, "ended": ended, "last_words": "\n".join(said(words))[-MOST_WORDS:]}


def said(file: IO[bytes]) -> list[str]:
    """The lines of a file, without the name of the one who is at home here."""
    file.seek(0)
    return file.read().decode(errors="replace").replace(str(Path.home()), "~").splitlines()


def read(line: str) -> Line:
    """What a part tells in a line; libraries print as well."""
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {"printed": line[:MOST_WORDS]}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, default=Path("first-gpu-run.jsonl"))
    parser.add_argument("--seconds", type=float, default=460)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    asked = parser.parse_args(words)
    begun = time.monotonic()
    with asked.report.open("w") as report:
        for name in asked.parts:
            left = begun + PARTS[name] * asked.seconds - time.monotonic()
            for line in in_process(name, max(left, 1), asked.small):
                text = json.dumps(line | {"s": round(time.monotonic() - begun, 1)})
                print(text, flush=True)
                report.write(text + "\n")
                report.flush()
    print(
        f"Written to {asked.report}, which has no names or paths of yours but those in errors: please send it."
    )


if __name__ == "__main__":
    main()
