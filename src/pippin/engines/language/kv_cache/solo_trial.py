"""Whether sequences that run one at a time can take tokens back, found by trying at load."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.device import require_sound_device
from pippin.engines.language.kv_cache.agreement import FAILURES, is_near, tolerance
from pippin.engines.language.kv_cache.layout import (
    CacheLayout,
    arrays_of,
    leaves,
    new_prompt_cache,
    probe_prompt,
)
from pippin.engines.language.kv_cache.slots import PromptCache, SlotRequest
from pippin.engines.language.kv_cache.solo_group import SoloGroup
from pippin.engines.language.kv_cache.taking_back import is_known

log = logging.getLogger(__name__)

LENGTHS = (5, 3)  # tokens of the prompts of two sequences
LONGEST = 512  # number that a cache of an unknown class may be made with: prompts of so many tokens are tried
TOKENS = (1, 2, 3, 4)  # what follows each prompt
WRONG = (9, 8, 7)  # what is proposed instead, and taken back


class Sample(NamedTuple):
    """A sequence to try."""

    prompt: Callable[[], PromptCache]  # computes it
    length: int
    kept: int  # of the tokens of a step, the first of which stays


def takes_back(model: nn.Module, layout: CacheLayout) -> bool:
    """Whether a model takes tokens back each of whose sequences has caches of its own, and nothing beside them."""
    longest = _longest_window(new_prompt_cache(model))
    if longest > LONGEST:
        return False
    # Up to what may be the length of a window, and past it.
    lengths = (*LENGTHS, longest + 2, longest - 1) if longest > 1 else LENGTHS
    samples = [
        Sample(partial(probe_prompt, model, length), length, kept)
        for length, kept in zip(lengths, (1, 3) * 2, strict=False)
    ]
    return _go_on(model, layout, samples)


def _longest_window(caches: PromptCache) -> int:
    """The largest number in new caches of unknown classes: their windows, if any, are no longer."""
    unknown = [leaf for leaf in leaves(caches) if not is_known(leaf)]
    longest = max((value for leaf in unknown for value in _numbers_in(leaf).values()), default=0)
    if longest > LONGEST:
        log.info(
            "sequences cannot take tokens back: %d tokens may be a window, too long to be tried", longest
        )
    return longest


def _numbers_in(leaf: Any) -> dict[str, int]:
    """The numbers of a cache, but for the size of the steps in which it grows."""
    return {name: value for name, value in vars(leaf).items() if isinstance(value, int) and name != "step"}


def _go_on(model: nn.Module, layout: CacheLayout, samples: Sequence[Sample]) -> bool:
    """Whether sequences of which each has forgotten some tokens of a step are as if each had had the others alone, and
    whether the step gave what each of them gives by itself."""
    try:
        alone = [_by_steps(model, sample) for sample in samples]
        group = SoloGroup(model, layout)
        for sample in samples:
            slot = group.reserve(SlotRequest(length=sample.length, growth=8, length_class=0), 8, 0)
            group.join(slot, sample.prompt(), shift=0)
        step = group.forward(mx.array([[*TOKENS[: each.kept], *WRONG[each.kept - 1 :]] for each in samples]))
        group.rewind({index: len(TOKENS) - each.kept for index, each in enumerate(samples)})
        after = group.forward(mx.array([[TOKENS[each.kept]] for each in samples]))
        together = [
            mx.concatenate([step[index, : each.kept], after[index]]) for index, each in enumerate(samples)
        ]
        return all(
            is_near(found, expected, tolerance(expected, arrays_of(cache)))
            and _numbers(group.view(index, group.length(index))) == _numbers(cache)
            for index, (found, (expected, cache)) in enumerate(zip(together, alone, strict=True))
        )
    except (*FAILURES, KeyError, AssertionError) as error:
        require_sound_device(error)
        log.info("sequences cannot take tokens back: %s", error)
        return False


def _by_steps(model: nn.Module, sample: Sample) -> tuple[mx.array, PromptCache]:
    """What the model gives for the tokens that stay and the one after them [tokens, vocabulary], one by one; and its
    caches then."""
    cache = sample.prompt()
    logits = [model(mx.array([[token]]), cache=cache)[0] for token in TOKENS[: sample.kept + 1]]
    found = mx.concatenate(logits)
    mx.eval(found)
    return found, cache


def _numbers(cache: PromptCache) -> list[dict[str, int]]:
    """What caches of unknown classes count."""
    return [_numbers_in(leaf) for leaf in leaves(cache) if not is_known(leaf)]
