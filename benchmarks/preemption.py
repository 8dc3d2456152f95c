"""What preemption costs: rows that outgrow the memory, beside the same rows with room enough.

    python -m benchmarks.preemption --model FOLDER [--rows 6] [--tokens 960]

One engine, without HTTP or processes. So many rows begin, each with a short prompt of its own. In the second run they
get the memory that they were admitted with, which they outgrow: some go back to the queue and come again when others
are done. Seconds, preemptions, prompt tokens computed (the rest of what was preempted came from the prefix cache), and
whether all answers are the same.
"""

import argparse
import time
from pathlib import Path

from benchmarks.growth import Asker, prompt_of
from pippin.core.events import PartDelta
from pippin.engines.language.kv_cache.kinds.base import GROWTH_CHARGED, rounded

PROMPT = 64  # tokens


def run(asker: Asker, rows: int, tokens: int, memory: int) -> tuple[float, int, int, dict[str, str]]:
    """Seconds, preemptions, prompt tokens computed, answers."""
    engine = asker.engine
    asker.forget()
    engine.lifecycle.resize(memory)
    before = engine.stats()
    answers: dict[str, str] = {}
    started = time.perf_counter()
    for row in range(rows):
        engine.submit(asker.job(f"p{row}", prompt_of(PROMPT, row), tokens))
    while engine.busy:
        for name, event in engine.step():
            if isinstance(event, PartDelta):
                answers[name] = answers.get(name, "") + event.text
    seconds = time.perf_counter() - started
    after = engine.stats()
    preemptions, computed = after.preemptions - before.preemptions, after.prompt_tokens - before.prompt_tokens
    return seconds, preemptions, computed, answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=960, help=f"of each answer; above {GROWTH_CHARGED}")
    options = parser.parse_args()
    asker = Asker(options.model)
    limits = asker.engine.scheduler.limits
    plenty = limits.memory
    tight = options.rows * limits.sequence_bytes(rounded(PROMPT + GROWTH_CHARGED + limits.slack))
    run(asker, options.rows, 2, plenty)  # nobody pays for the first step
    print("| memory for rows | seconds | preemptions | prompt tokens computed |")
    print("|---|---|---|---|")
    found = []
    for memory in (plenty, tight):
        seconds, preemptions, computed, answers = run(asker, options.rows, options.tokens, memory)
        print(f"| {memory / 2**20:.0f} MiB | {seconds:.1f} | {preemptions} | {computed} |", flush=True)
        found.append(answers)
    print(f"\nall {options.rows} answers the same: {found[0] == found[1]}")


if __name__ == "__main__":
    main()
