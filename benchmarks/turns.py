"""Each turn of a conversation beside the raw cost of what is new in it.

    python -m benchmarks.turns --model FOLDER [--turns 6] [--new 140] [--rounds 3]

raw: mlx-lm's model over its own cache, given the new tokens alone in one piece, and an argmax. pippin: the engine as
the worker drives it, given the whole conversation. In turns; medians of the rounds. No HTTP, no processes.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.growth import Asker, prompt_of


class RawConversation:
    """The raw model, which remembers what it was given."""

    def __init__(self, model: Any) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self.model = model
        self.cache = make_prompt_cache(model)
        self.given = 0

    def first_token(self, prompt: list[int]) -> float:
        import mlx.core as mx

        new = mx.array([prompt[self.given :]])
        started = time.perf_counter()
        mx.eval(mx.argmax(self.model(new, cache=self.cache)[:, -1], axis=-1))
        self.given = len(prompt)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--new", type=int, default=140, help="tokens of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of the BLAS")
    options = parser.parse_args()
    asker = Asker(options.model, options.threads, cache_memory_mb=2048)
    asker.first_token(prompt_of(options.new, seed=999))  # the first of all is slower
    runs: dict[int, list[tuple[float, float, int]]] = {turn: [] for turn in range(options.turns)}
    for number in range(options.rounds):
        asker.forget()
        raw, prompt = RawConversation(asker.engine.model), []
        for turn in range(options.turns):
            prompt = [*prompt, *prompt_of(options.new, seed=100 * number + turn)]
            seconds = raw.first_token(prompt)
            runs[turn].append((seconds, *asker.first_token(prompt)))
    print("| turn | tokens | cached | raw ms | pippin ms | pippin/raw |")
    print("|---|---|---|---|---|---|")
    for turn, found in runs.items():
        raw_ms, pippin_ms = (1000 * statistics.median(run[place] for run in found) for place in (0, 1))
        ratio = statistics.median(run[1] / run[0] for run in found)
        tokens = (turn + 1) * options.new
        print(f"| {turn + 1} | {tokens} | {found[-1][2]} | {raw_ms:.0f} | {pippin_ms:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
