"""Sequences of different length have learned positions of their own."""

from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.probe import choose_batching
from tests.engines.language.bench import Bench, run_all
from tests.engines.tiny_models import TinyModels


def test_sequences_of_gpt_bigcode_answer_together_as_mlx_lm_answers_each(tiny_models: TinyModels) -> None:
    folder = tiny_models("gpt_bigcode")
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    assert choose_batching(bench.model, bench.options).shape is not None
    prompts = {f"r{place}": (tuple(range(3 + 11 * place)), 12) for place in range(4)}
    answers, _ = run_all(bench, prompts)
    bench.model, _ = load_model(folder)
    for name, (prompt, tokens) in prompts.items():
        assert len(answers[name, 0]) == tokens
        bench.judge(prompt, answers[name, 0])
