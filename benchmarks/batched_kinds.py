"""What batches bring models whose caches have indexes or pooled keys: four sequences together and one after the other.

`python -m benchmarks.batched_kinds` makes random checkpoints of a medium size and prints the CPU seconds that a token
takes, in rounds side by side, so that what else runs on the machine disturbs both alike.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.engines.language.bench import Bench, run_all
from tests.engines.language.kv_cache.test_pooling import V4
from tests.engines.language.vision.any_family import write
from tests.engines.tiny_models import tiny_model

from pippin.config.options.model import ModelOptions

PROMPTS = {
    f"r{row}": (tuple((row * 31 + place * 7) % 250 for place in range(48 + row)), 48) for row in range(4)
}


def deepseek_v32(folder: Path) -> Path:
    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 4,
    }
    return tiny_model("deepseek_v32", folder, **sizes, kv_lora_rank=128, q_lora_rank=128, index_topk=32)


def deepseek_v4(folder: Path) -> Path:
    return write("deepseek_v4", V4, folder)


def measure(made: Callable[[Path], Path], rounds: int) -> None:
    name = made.__name__
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(made(Path(root) / name), ModelOptions(prefix_cache=False))
        ratios = []
        for number in range(rounds + 1):
            begun = time.process_time()
            for each in PROMPTS:
                run_all(bench, {each: PROMPTS[each]})
            alone = time.process_time() - begun
            run_all(bench, PROMPTS)
            together = time.process_time() - begun - alone
            if number:  # the first one warms up
                ratios.append(alone / together)
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{name}: four together take 1/{median(ratios):.2f} of the CPU of one after the other ({told})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    for made in (deepseek_v32, deepseek_v4):
        measure(made, parser.parse_args().rounds)
