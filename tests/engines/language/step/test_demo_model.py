"""The engine on real weights: answers in company, warm and cold, are those of the model alone."""

import time
from pathlib import Path

import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.device import decide, find_facts
from tests.engines.language.bench import Bench, run_all

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


@pytest.mark.long
@pytest.mark.model
def test_a_known_prompt_is_answered_several_times_faster_after_a_restart(
    demo_model: Path, tmp_path: Path
) -> None:
    """In CPU time, which neighbours do not change much."""
    options = ModelOptions(cache_dir=str(tmp_path))
    prompt = tuple(100 + place * 7919 % 40_000 for place in range(1500))
    work = []
    for _ in range(2):
        bench = Bench(demo_model, options, decide(find_facts(), options))
        started = time.process_time()
        _, ends = run_all(bench, {"a": (prompt, 1)})
        work.append(time.process_time() - started)
        bench.engine.close()
    assert ends["a", 0].usage.cached_tokens == 1488
    print(f"computed: {work[0]:.2f} s, after a restart: {work[1]:.2f} s")
    assert work[1] < work[0] / 5
