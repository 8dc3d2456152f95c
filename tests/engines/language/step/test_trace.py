"""What a plain decode step enters of Pippin, as it really runs: `scripts.trace_step`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.trace_step import Calls, longest_of

from pippin.config.options.model import ModelOptions
from tests.engines.language.bench import MAC, Bench
from tests.engines.tiny_models import TinyModels

ROOT = Path(__file__).parents[4]
MOST_FILES = 15
MOST_FUNCTIONS = 120 if MAC is None else 121  # its checkpoints may say a token that is new, which is spelled


def judge(calls: Calls) -> None:
    assert len({function.file for function in calls}) <= MOST_FILES, sorted(calls)
    assert len(calls) <= MOST_FUNCTIONS, sorted(calls)


@pytest.mark.parametrize("sequences", [1, 3])
def test_a_plain_step_enters_few_files_and_functions(tiny_models: TinyModels, sequences: int) -> None:
    bench = Bench(tiny_models("llama"), ModelOptions())
    engine = bench.engine
    for number in range(sequences):
        engine.submit(bench.job(f"r{number}", tuple(range(5, 15 + number)), 60))
    while len(engine.batch.running) < sequences:
        engine.step()
    for _ in range(4):
        engine.step()
    judge(longest_of(engine))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_plain_step_of_a_worker_enters_few_files_and_functions(demo_model: Path) -> None:
    """With the kernels for CPUs where they are installed."""
    command = [sys.executable, "-m", "scripts.trace_step", "--model", str(demo_model)]
    traced = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [(files, functions)] = re.findall(r"^together, (\d+) files +(\d+)", traced, re.MULTILINE)
    assert (int(files) <= MOST_FILES, int(functions) <= MOST_FUNCTIONS) == (True, True), traced
