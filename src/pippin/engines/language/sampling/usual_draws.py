"""The draws that clients ask for most, to be computed before the first of them comes."""

from typing import Final

import mlx.core as mx
import numpy as np

from pippin.core.requests import Sampling
from pippin.engines.language.sampling.sampler import BatchSampler
from pippin.engines.language.text.tokenizer import Tokenizer

USUAL: Final = (
    Sampling(temperature=0),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05),
    Sampling(temperature=0.6, top_p=0.95, min_p=0.05),
    Sampling(temperature=0, logit_bias={0: 1.0}, repetition_penalty=1.1),
    Sampling(temperature=0.8, frequency_penalty=0.1, presence_penalty=0.1),
)


def usual_draws(tokenizer: Tokenizer, logits: mx.array) -> list[mx.array]:
    """Draws from a model's logits [1, V], to be evaluated: two steps of a batch of the usual rows, with and without a
    grammar's mask. A GPU compiles what it has not computed before, for which a client would wait."""
    vocabulary = logits.shape[-1]
    sampler = BatchSampler(tokenizer)
    for seed, sampling in enumerate(USUAL):
        sampler.join(sampling, seed=seed, prompt=(0,), logprobs=seed % 3, vocabulary=vocabulary)
    rows = mx.repeat(logits, len(USUAL), axis=0)
    masks = np.full((2, -(-vocabulary // 32)), -1, np.int32)
    free, masked = sampler.sample(rows), sampler.sample(rows, masks, [0, 2])
    return [*free.arrays(), *masked.arrays()]
