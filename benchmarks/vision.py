"""Pictures in the language engine: what a follow-up question saves, and what company costs.

    python -m benchmarks.vision

Random weights in the shape of a small Qwen2-VL (about 70 million parameters): only ratios mean anything.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pippin.config.options.model import ModelOptions
from pippin.core.events import Progress
from pippin.engines.cpu.blas import accelerate_blas

TEXT = {"hidden_size": 512, "num_hidden_layers": 10, "intermediate_size": 1536, "num_attention_heads": 8}
TOWER = {"depth": 12, "embed_dim": 512, "hidden_size": 512, "num_heads": 8}
QUESTION = "What is in the picture, and what is to the left of it?"
TOKENS = 48


def build(folder: Path) -> Any:
    from tests.engines.language.vision import tiny_vision_models as tiny
    from tests.engines.language.vision.vision_bench import VisionBench

    family = tiny.FAMILIES["qwen2_vl"]
    config = {**family.config, **TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
    config["vision_config"] = {**config["vision_config"], **TOWER, "mlp_ratio": 4}
    tiny.FAMILIES["qwen2_vl"] = replace(
        family, config=config, preprocessor={**family.preprocessor, "max_pixels": 16384}
    )
    return VisionBench(tiny.tiny_vision_model("qwen2_vl", folder / "qwen2_vl"))


def first_token(bench: Any, engine: Any, *parts: Any) -> float:
    """Milliseconds from a question to its first token."""
    started = time.perf_counter()
    engine.submit(bench.job("a", *parts, tokens=1))
    while engine.busy:
        engine.step()
    return (time.perf_counter() - started) * 1e3


def throughput(bench: Any, pictures: list[bytes]) -> float:
    """Tokens in a second of rows that decode together, each with a picture of its own."""
    engine = bench.new_engine()
    for number, shown in enumerate(pictures):
        engine.submit(bench.job(str(number), shown, QUESTION, tokens=TOKENS, ignore_eos=True))
    while len(engine.batch.running) < len(pictures):
        if any(isinstance(event, Progress) for _, event in engine.step()):
            continue
    done, started = engine.stats().completion_tokens, time.perf_counter()
    while len(engine.batch.running) == len(pictures):
        engine.step()
    return float(engine.stats().completion_tokens - done) / (time.perf_counter() - started)


def main() -> None:
    accelerate_blas(ModelOptions(), 1)
    from tests.engines.language.vision.tiny_vision_models import picture

    with tempfile.TemporaryDirectory() as folder:
        bench = build(Path(folder))
        engine = bench.new_engine()
        first_token(bench, engine, picture(250, 250, 99), "warm")
        shown = picture(250, 250, 1)
        print(f"prompt tokens                           {len(bench.job('a', shown, QUESTION).prompt):6d}")
        print(f"first question, ms to the first token   {first_token(bench, engine, shown, QUESTION):8.1f}")
        print(f"another question on the same picture    {first_token(bench, engine, shown, 'And now?'):8.1f}")
        before = engine.vision.encoded
        changed = first_token(bench, engine, "Read this first.", shown, "And now?")
        print(f"the same picture after other text       {changed:8.1f}")
        print(f"pictures encoded for the last two       {engine.vision.encoded - before:6d}")
        for rows in (1, 4, 8):
            speed = max(
                throughput(bench, [picture(60 + 8 * n, 60, n) for n in range(rows)]) for _ in range(3)
            )
            print(f"rows with pictures {rows:2d}: {speed:8.1f} tokens/s in all")


if __name__ == "__main__":
    sys.exit(main())
