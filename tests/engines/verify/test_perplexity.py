"""The perplexity that `pippin verify` tells, beside that of the plain model."""

import math
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.engines.device import decide, find_facts
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify.reading.perplexity import Surprise, predict, sample, sample_rows
from tests.engines.tiny_models import tiny_model


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next", "gpt_oss", "mamba2"])
def test_perplexity_layer_by_layer_is_that_of_the_whole_model(architecture: str, tmp_path: Path) -> None:
    folder = tiny_model(architecture, tmp_path / "source")
    tokens = Tokenizer.load(folder).encode(sample())
    model, _ = load_model(folder)
    surprise = 0.0
    for row in (tokens[:257], tokens[257:514]):
        logits = model(mx.array([row[:-1]]))[0]
        surprise -= sum(
            (logits[at, token] - mx.logsumexp(logits[at])).item() for at, token in enumerate(row[1:])
        )
    rows = sample_rows(tokenizer := Tokenizer.load(folder))
    predicted = predict(folder, rows, decide(find_facts(), ModelOptions()))
    assert Surprise.of(predicted, rows, tokenizer).perplexity == pytest.approx(
        math.exp(surprise / 512), rel=1e-3
    )
