"""What a model may say in 16 bits, where nothing differs but how its sums are rounded.

Where a model chooses experts, or the entries of an index, two scores that are as good as equal turn a whole answer. No
bound on logits tells that from a fault. So a test first asks for what the model alone says, and then, as on a Mac, for
what it alone says under one pattern of rounding after the other: the engine must say the same as one of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from random import Random
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from tests.as_on_a_mac.process import TAKEN

PATTERNS: Final = 24
"""Of rounding, at most. Few are tried where the first tells."""

MOST: Final = 5
"""Tokens of a step."""
Tokens = Sequence[int]
Keep = Callable[[Any], Any]


def _as_is(layer: Any) -> Any:
    return layer


def roundings() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """To compute in: as it is; then, on a made-up Mac, in one pattern of rounding after the other."""
    yield nullcontext
    for gpu in TAKEN:
        for seed in range(1, PATTERNS + 1):
            yield partial(gpu.rounds, seed)


def is_said(found: Any, say: Callable[[], Any]) -> bool:
    """Whether this is what is said in one of the roundings."""
    for rounding in roundings():
        with rounding():
            said = say()
        if said == found:
            return True
    return False


def own_logits(model: nn.Module, prompt: Tokens, answer: Tokens, keep: Keep = _as_is) -> Iterator[mx.array]:
    """Of the model alone at each token of the answer, [tokens, vocabulary], in each of the roundings: in one pass, and
    in steps, which sum in another order: of a token each at first, then of several, as those have that judge what was
    proposed. `keep` gives what is kept of a layer's cache between two steps."""
    for number, rounding in enumerate(roundings()):
        for way in (in_one_pass, partial(by_steps, keep=keep, most=min(1 + number, MOST), seed=number)):
            with rounding():
                logits = way(model, prompt, answer)
            yield logits


def in_one_pass(model: nn.Module, prompt: Tokens, answer: Tokens) -> mx.array:
    tokens = mx.array([(*prompt, *answer[:-1])])
    logits: mx.array = model(tokens, cache=make_prompt_cache(model))
    return logits[0, len(prompt) - 1 :].astype(mx.float32)


def by_steps(
    model: nn.Module, prompt: Tokens, answer: Tokens, keep: Keep = _as_is, *, most: int = 1, seed: int = 0
) -> mx.array:
    cache, draw = make_prompt_cache(model), Random(seed)
    found, place = [model(mx.array([prompt]), cache=cache)[0, -1:]], 0
    while place < len(answer) - 1:
        cache = [keep(layer) for layer in cache]
        step = answer[place : min(place + draw.randint(1, most), len(answer) - 1)]
        found.append(model(mx.array([step]), cache=cache)[0])
        place += len(step)
    return mx.concatenate(found).astype(mx.float32)
