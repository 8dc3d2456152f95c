"""Models that are mended answer together, from the first token on, as mlx-lm's own answer each by itself."""

import pytest
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.model.architectures import MENDED
from tests.engines.language.bench import Bench, run_all
from tests.engines.tiny_models import TinyModels


@pytest.mark.parametrize("architecture", MENDED)
def test_sequences_answer_together_as_mlx_lm_answers_each(tiny_models: TinyModels, architecture: str) -> None:
    folder = tiny_models(architecture)
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    batching = choose_batching(bench.model, bench.options)
    assert batching.shape is not None
    assert batching.rewinds
    prompts = {f"r{place}": (tuple(range(length)), 12) for place, length in enumerate((1, 2, 14, 36))}
    answers, _ = run_all(bench, prompts)
    bench.model, _ = load_model(folder)
    assert not type(bench.model).__module__.startswith("pippin")
    for name, (prompt, tokens) in prompts.items():
        assert len(answers[name, 0]) == tokens
        bench.judge(prompt, answers[name, 0])
