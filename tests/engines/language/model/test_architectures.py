"""Models that are mended answer together, from the first token on, as mlx-lm's own answer each by itself."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.model.architectures import MENDED, REFUSES_HEADS, classes_of
from tests.engines.language.bench import Bench, run_all
from tests.engines.language.drafters.tiny_layers import checkpoint
from tests.engines.tiny_models import TinyModels, tiny_model


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


@pytest.mark.parametrize("architecture", REFUSES_HEADS)
def test_layers_behind_the_last_one_do_not_keep_a_model_from_being_read(
    architecture: str, tmp_path: Path
) -> None:
    if architecture == "bailing_moe":
        folder, _ = checkpoint(architecture, tmp_path)
    else:
        folder = tiny_model(architecture, tmp_path)
        behind = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        head = {f"model.layers.{behind}.eh_proj.weight": mx.ones((64, 128))}
        mx.save_safetensors(str(folder / "model-head.safetensors"), head)
    with pytest.raises(ValueError, match="not in model"):
        load_model(folder)
    model, _ = load_model(folder, get_model_classes=classes_of)
    stored = mx.load(str(folder / "model.safetensors"))
    parameters = dict(tree_flatten(model.parameters()))
    assert all(mx.array_equal(array, stored[name]).item() for name, array in parameters.items())


@pytest.mark.parametrize("architecture", MENDED)
def test_a_mended_model_has_the_logits_of_mlx_lms(tiny_models: TinyModels, architecture: str) -> None:
    folder = tiny_models(architecture)
    mended, own = Bench(folder, ModelOptions()).model, load_model(folder)[0]
    found, expected = (new_prompt_cache(model) for model in (mended, own))
    tokens = mx.array([[place * 7 % 240 for place in range(60)]])
    for start, stop in ((0, 9), (9, 10), (10, 47), (47, 48), (48, 60)):
        piece = tokens[:, start:stop]
        assert mx.allclose(mended(piece, cache=found), own(piece, cache=expected), atol=1e-3)
