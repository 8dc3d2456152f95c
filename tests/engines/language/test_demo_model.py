"""The engine on real weights: answers in company, warm and cold, are those of the model alone."""

from pathlib import Path

import pytest
from tests.engines.bench import Bench, run_all

from pippin.config.model_options import ModelOptions
from pippin.engines.device import decide, find_facts

TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a village by the sea, there lived a girl who",
)
TIE = 5e-3


@pytest.mark.model
def test_a_batch_of_real_prompts_answers_as_the_model_alone(demo_model: Path) -> None:
    options = ModelOptions()
    bench = Bench(demo_model, options, decide(find_facts(), options))
    prompts = {f"r{place}": (tuple(bench.tokenizer.encode(text)), 6) for place, text in enumerate(TEXTS)}
    answers, _ = run_all(bench, prompts)
    for name, (prompt, _) in prompts.items():
        bench.judge(prompt, answers[name, 0], tie=TIE)
    assert bench.tokenizer.decode(answers["r0", 0]).startswith(" Paris")


@pytest.mark.model
def test_a_real_conversation_goes_on_from_the_cache(demo_model: Path) -> None:
    options = ModelOptions(cache_block_tokens=16)
    bench = Bench(demo_model, options, decide(find_facts(), options))
    prompt = tuple(bench.tokenizer.encode(TEXTS[1]))
    answers, _ = run_all(bench, {"a": (prompt, 4)})
    prompt += (*answers["a", 0], *bench.tokenizer.encode(" And then"))
    answers, ends = run_all(bench, {"b": (prompt, 4)})
    assert ends["b", 0].usage.cached_tokens >= 16
    bench.judge(prompt, answers["b", 0], tie=TIE)
