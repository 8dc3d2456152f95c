"""Prompts scored through Completions, as evaluation harnesses ask for it, beside the model's own log-probabilities."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import mlx.core as mx
import pytest
from mlx_lm import load
from openai import OpenAI

from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server

pytestmark = pytest.mark.timeout(600)

TEXTS: Final = ("The capital of France is Paris.", "Water boils at one hundred degrees, déjà vu 🙂.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("models") / "tiny")


# Not strict: the client's types forget that the first token of a prompt has no logprob, which is null.
@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[OpenAI]:
    with (
        running_server(tmp_path_factory.mktemp("home"), str(folder)) as address,
        OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as made,
    ):
        yield made


def test_prompts_of_tokens_are_scored_as_the_model_scores_them(client: OpenAI, folder: Path) -> None:
    model, tokenizer = load(str(folder), lazy=True)[:2]
    model.set_dtype(mx.float32)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    answer = client.completions.create(
        model="default", prompt=prompts, echo=True, logprobs=1, max_tokens=0, temperature=0, seed=1234
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice, tokens, text in zip(answer.choices, prompts, TEXTS, strict=True):
        scores = choice.logprobs
        assert scores is not None
        assert scores.token_logprobs is not None
        assert scores.top_logprobs is not None
        assert choice.text == text
        assert len(scores.tokens or ()) == len(scores.text_offset or ()) == len(tokens)
        logits = model(mx.array([tokens]))[0].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        assert scores.token_logprobs[0] is None, "nothing comes before the first"
        for place in range(1, len(tokens)):
            own = logprobs[place - 1, tokens[place]].item()
            assert scores.token_logprobs[place] == pytest.approx(own, abs=2e-3)
            best = logprobs[place - 1].max().item()
            assert max(scores.top_logprobs[place].values()) == pytest.approx(best, abs=2e-3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
