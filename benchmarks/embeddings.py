"""Throughput of embeddings on the CPU: Pippin's engine, with its kernels and without, beside sentence-transformers on
torch, the same weights.

    python -m benchmarks.embeddings .cache/all-minilm-l6-v2 --oracle .venv-oracle/bin/python

Rounds of all alternate, so that a busy machine slows all; the best round of each counts. Batches of
sentence-transformers are 32, its default, sorted by length as it does by itself.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

TEXTS = Path(__file__).parent.parent / "tests" / "oracles"
THEIRS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from embedding_texts import texts
from sentence_transformers import SentenceTransformer
torch.set_num_threads(int(sys.argv[3]))
model = SentenceTransformer(sys.argv[2], device="cpu")
model.encode(texts()[:8])
clock = time.process_time if sys.argv[4] == "cpu" else time.perf_counter
for line in sys.stdin:
    start = clock()
    model.encode((texts() * 2)[: int(sys.argv[5])], batch_size=32)
    print(json.dumps(clock() - start), flush=True)
"""


def our_rounds(
    folder: Path, threads: int, options: ModelOptions, most: int, clock: Callable[[], float]
) -> tuple[int, int, Callable[[], float]]:
    """Texts, `most` at most, and tokens of a round, and a function that runs one and gives its seconds."""
    accelerate_blas(options, threads)
    from tests.engines.driving import no_progress, run
    from tests.oracles.embedding_texts import texts

    from pippin.catalog.info import read_info
    from pippin.core.models import WorkerSpec
    from pippin.core.tasks import Embed
    from pippin.engines import embeddings

    spec = WorkerSpec(info=read_info(folder), options=msgspec.to_builtins(options), threads=threads)
    preparer = embeddings.open_preparer(spec)
    engine = embeddings.open_engine(spec, preparer, no_progress)
    inputs = tuple((texts() * 2)[:most])

    def round_() -> float:
        start = clock()
        job = preparer.prepare("one", Embed(inputs=inputs, overflow="truncate"))
        assert not isinstance(job, tuple)
        run(engine, job)
        return clock() - start

    job = preparer.prepare("tokens", Embed(inputs=inputs, overflow="truncate"))
    assert not isinstance(job, tuple)
    return len(inputs), job.accepted.prompt_tokens, round_


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--oracle", type=Path, required=True, help="Python that has sentence-transformers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=400, help="the most texts of a round")
    parser.add_argument("--cpu-time", action="store_true", help="count seconds of CPU, for a busy machine")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    shared = options.texts, clock
    texts, tokens, ours = our_rounds(options.folder, options.threads, ModelOptions(), *shared)
    *_, without = our_rounds(options.folder, options.threads, ModelOptions(cpu_kernels="off"), *shared)
    command = [options.oracle, "-c", THEIRS, TEXTS, options.folder, str(options.threads)]
    command += ["cpu" if options.cpu_time else "wall", str(options.texts)]
    best = dict.fromkeys(("pippin", "pippin without kernels", "sentence-transformers"), float("inf"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as theirs:
        assert theirs.stdin is not None
        assert theirs.stdout is not None
        for _ in range(options.rounds):
            best["pippin"] = min(best["pippin"], ours())
            best["pippin without kernels"] = min(best["pippin without kernels"], without())
            theirs.stdin.write("go\n")
            theirs.stdin.flush()
            best["sentence-transformers"] = min(
                best["sentence-transformers"], json.loads(theirs.stdout.readline())
            )
        theirs.stdin.close()
    for name, seconds in best.items():
        print(
            f"{name:22} {seconds:6.2f} s   {texts / seconds:7.1f} texts/s   {tokens / seconds:8.0f} tokens/s"
        )


if __name__ == "__main__":
    main()
