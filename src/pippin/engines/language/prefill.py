"""Computing prompts: a chunk at a time, each in a cache of its own."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.core.events import Token, TopToken
from pippin.engines.language.head import Head
from pippin.engines.language.row_caches import arrays_of
from pippin.engines.language.rows import Prompt
from pippin.engines.language.tokenizer import Tokenizer

SCORED_CHUNK = 64  # tokens whose logits over the vocabulary are held at once


def compute_chunk(model: nn.Module, head: Head, prompt: Prompt, tokens: int, *, wait: bool) -> None:
    """Add the next `tokens` of the prompt to its cache, and note the logits after its last one; `wait` until the
    device has filled the cache."""
    start = prompt.ticket.computed
    with head.only([tokens - 1]):
        logits = head.last(_run(model, prompt, start, tokens), [tokens - 1])
    note_logits(prompt, tokens, logits)
    start_computing([prompt], wait=wait)


def start_computing(prompts: Sequence[Prompt], *, wait: bool) -> None:
    """Hand chunks to the device. Logits with them: they look at the cache, and a look that waits would have what is
    next written there copy all of it."""
    arrays = [array for prompt in prompts for array in arrays_of(prompt.cache or [])]
    arrays += [prompt.logits for prompt in prompts if prompt.logits is not None]
    if wait:
        mx.eval(arrays)
    else:
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def note_logits(prompt: Prompt, count: int, logits: mx.array) -> None:
    """`logits` [1, vocabulary] follow the next `count` tokens: they matter if no more come."""
    if count == prompt.ticket.remaining:
        prompt.logits = logits


def _run(model: nn.Module, prompt: Prompt, start: int, count: int) -> mx.array:
    """Logits [1, count, vocabulary] of tokens of the prompt, from `start` on."""
    tokens = prompt.tokens[start : start + count]
    viewing = prompt.request.viewing
    given = {} if viewing is None else {"inputs": viewing.inputs(tokens, start)}
    logits: mx.array = model(mx.array([tokens]), cache=prompt.cache, **given)
    return logits


def score_chunk(
    model: nn.Module, prompt: Prompt, tokens: int, tokenizer: Tokenizer, alternatives: int
) -> None:
    """As `compute_chunk`, and note the logprob of each token that follows one of these."""
    assert prompt.cache is not None
    start = prompt.ticket.computed
    if not prompt.scores:
        prompt.scores.append(Token(prompt.tokens[0], tokenizer.raw(prompt.tokens[0]), None))
    while tokens > 0:
        count = prompt.border(start + min(tokens, SCORED_CHUNK), start) - start
        logits = _run(model, prompt, start, count)[0].astype(mx.float32)
        if start + count == len(prompt.tokens):
            prompt.logits = logits[-1:]
            mx.eval(prompt.logits)
            logits = logits[:-1]
            if not logits.size:
                break
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        targets = prompt.tokens[start + 1 : start + count + 1]
        chosen = mx.take_along_axis(logprobs, mx.array(targets)[:, None], axis=-1)[:, 0]
        best = mx.argsort(-logprobs, axis=-1)[:, :alternatives]
        scores = mx.take_along_axis(logprobs, best, axis=-1)
        mx.eval(chosen, best, scores, arrays_of(prompt.cache))
        rows = zip(
            targets,
            np.array(chosen).tolist(),
            np.array(best).tolist(),
            np.array(scores).tolist(),
            strict=True,
        )
        for token, logprob, ids, values in rows:
            top = tuple(
                TopToken(other, tokenizer.raw(other), value) for other, value in zip(ids, values, strict=True)
            )
            prompt.scores.append(Token(token, tokenizer.raw(token), logprob, top))
        start, tokens = start + count, tokens - count
