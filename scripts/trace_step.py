"""Tells which files and functions of Pippin one plain decode step of the language engine enters.

    python -m scripts.trace_step [--model FOLDER] [--sequences 1] [--each]

The engine is that of the worker, with the kernels for CPUs if they are installed. Of several steps in a row, in which
nothing begins or ends, the one that enters the most functions is shown.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.cpu.blas import accelerate_blas

if TYPE_CHECKING:
    from pippin.engines.language.step.engine import LanguageEngine

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'src' / 'pippin'}/"
DEMO = "smollm2-135m-instruct"
WARM, LOOKED_AT = 8, 8  # steps


class Function(NamedTuple):
    file: str
    line: int
    name: str


Calls = Counter[Function]


def trace_step(engine: "LanguageEngine") -> Calls:
    """The functions of Pippin that one step enters, and how often."""
    calls: Calls = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            file = code.co_filename.removeprefix(PACKAGE)
            calls[Function(file, code.co_firstlineno, code.co_qualname)] += 1

    sys.setprofile(profile)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return calls


def longest_of(engine: "LanguageEngine", steps: int = LOOKED_AT) -> Calls:
    """The step of these that enters the most functions."""
    return max((trace_step(engine) for _ in range(steps)), key=len)


def running_engine(model: Path, sequences: int) -> "LanguageEngine":
    """The worker's engine of this model, in which so many sequences decode."""
    accelerate_blas(ModelOptions(), None)
    from pippin.engines.language import open_engine, open_preparer  # these import mlx
    from pippin.engines.language.step.engine import LanguageEngine

    info = ModelInfo(id="traced", kind="language", path=str(model))
    spec = WorkerSpec(info=info, options=msgspec.to_builtins(ModelOptions()))
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, lambda *_: None)
    assert isinstance(engine, LanguageEngine)
    for number in range(sequences):
        said = Message("user", (Text(f"Tell a long story about the mountain number {number}."),))
        sampling = Sampling(temperature=0.0)
        request = GenerationRequest(
            model="traced", messages=(said,), sampling=sampling, max_tokens=200, ignore_eos=True
        )
        job = preparer.prepare(f"{time.monotonic_ns()}-{number}", Generate(request))
        engine.submit(job)  # type: ignore[arg-type]
    while len(engine.batch.running) < sequences:
        engine.step()
    for _ in range(WARM):
        engine.step()
    return engine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.trace_step", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of the model; the demo model if not set")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="name each function")
    options = parser.parse_args()
    found = sorted((ROOT / ".cache" / "models").glob(f"*/{DEMO}"))
    if options.model is None and not found:
        sys.exit("The demo model is not here; fetch it with `make demo`.")
    calls = longest_of(running_engine(options.model or found[0], options.sequences))
    print(table(calls, each=options.each))


def table(calls: Calls, *, each: bool) -> str:
    """Functions and calls of each file, and of all together."""
    functions, counts = Counter[str](), Counter[str]()
    for function, count in calls.items():
        functions[function.file] += 1
        counts[function.file] += count
    rows = [f"{'file':<52}{'functions':>10}{'calls':>7}"]
    for file in sorted(functions):
        rows.append(f"{file:<52}{functions[file]:>10}{counts[file]:>7}")
        if each:
            own = sorted(
                (function.line, function.name, count)
                for function, count in calls.items()
                if function.file == file
            )
            rows += [f"    {line:>4} {name} x{count}" for line, name, count in own]
    rows.append(f"{f'together, {len(functions)} files':<52}{functions.total():>10}{counts.total():>7}")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
