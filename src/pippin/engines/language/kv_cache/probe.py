"""How the sequences of a model can run together, found by trying: a short run that is the warm-up as well."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from pippin.config.options.model import ModelOptions, cache_bits
from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache import slots as sizes
from pippin.engines.language.kv_cache.agreement import FAILURES, is_near, tolerance
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves, new_prompt_cache, probe_prompt
from pippin.engines.language.kv_cache.slots import (
    PromptCache,
    Slot,
    SlotGroup,
    SlotRequest,
)
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
            is_near(found, expected, tolerance(expected.dtype))
            and _numbers(group.view(index, group.length(index))) == _numbers(cache)
            for index, (found, (expected, cache)) in enumerate(zip(together, alone, strict=True))
        )
    except (*FAILURES, KeyError, AssertionError) as error:
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


PROBE_LENGTHS = (5, 3)  # tokens of two sequences of different length
QUANTIZED_TOLERANCE = {8: 0.1, 6: 0.25, 5: 0.4, 4: 0.6, 3: 1.0, 2: 2.0}
"""The same by the bits of keys or values, whichever are fewer: random weights suffer more than trained ones."""


@dataclass(frozen=True, kw_only=True)
class Batching:
    new_group: Callable[[], SlotGroup]
    vocabulary: int
    layout: CacheLayout  # of prompts
    shape: BatchShape | None  # None: sequences run one at a time
    slack: int  # tokens that a slot has capacity for beyond its sequence
    slot_bytes: Callable[[int], int]  # of one slot with capacity for so many tokens
    rewinds: bool = False  # sequences can forget tokens of their last step

    @property
    def joint_prompts(self) -> bool:
        """Whether several prompts can be computed in one pass."""
        return self.shape is not None and self.layout.joins


def choose_batching(model: nn.Module, options: ModelOptions) -> Batching:
    """Raises `ServerError("load_failed")` if the model does not run, or cannot run as the options ask."""
    started = time.monotonic()
    quantizes = cache_bits(options) != (None, None)
    prompts, alone = _computed_alone(model)
    layout = CacheLayout.learn(model, prompts[0])
    slack = options.cache_block_tokens + options.num_draft_tokens
    bare = BatchShape(layout=layout, slack=slack)
    plain = _plain(model, bare, prompts, alone, may_be_in_slots=not quantizes)
    if plain is None:
        if quantizes:
            raise _no_quantization("its caches are of a kind of their own")
        return _one_at_a_time(model, layout, alone.shape[-1])
    shape = _quantized(model, plain, options, prompts, alone) if quantizes else plain
    rewinds = _rewinds(model, plain, alone)
    log.info("warm-up took %.2f s", time.monotonic() - started)
    return Batching(
        new_group=partial(BatchedGroup, model, shape),
        vocabulary=alone.shape[-1],
        layout=layout,
        shape=shape,
        slack=slack,
        slot_bytes=partial(shape.layout.slot_bytes, slack=slack),
        rewinds=rewinds,
    )


def _computed_alone(model: nn.Module) -> tuple[list[PromptCache], mx.array]:
    """The caches of two prompts, and the logits of two steps after each [2, 2, vocabulary], as the model computes them
    one after the other: what a batch is held against. Raises `ServerError("load_failed")` if the model does not
    run."""
    try:
        prompts = [probe_prompt(model, length) for length in PROBE_LENGTHS]
        own = [probe_prompt(model, length) for length in PROBE_LENGTHS]
        alone = _two_steps(lambda: mx.concatenate([model(mx.array([[1]]), cache=cache) for cache in own]))
        mx.eval(alone)
    except FAILURES as error:
        raise ServerError(
            "load_failed", f"The model does not run: {type(error).__name__}: {error}"
        ) from error
    return prompts, alone


def _two_steps(step: Callable[[], mx.array]) -> mx.array:
    """What two steps give, one behind the other: the second tells whether the first was written down."""
    return mx.concatenate([step(), step()], axis=1)


def _one_at_a_time(model: nn.Module, layout: CacheLayout, vocabulary: int) -> Batching:
    log.warning(
        "sequences of this model run one at a time and prompts are not cached: its caches cannot be batched"
    )
    return Batching(
        new_group=lambda: SoloGroup(model, layout),
        vocabulary=vocabulary,
        layout=layout,
        shape=None,
        slack=sizes.CAPACITY_STEP,
        slot_bytes=layout.prompt_bytes,
        rewinds=takes_back(model, layout),
    )


def _plain(
    model: nn.Module, bare: BatchShape, prompts: list[PromptCache], alone: mx.array, *, may_be_in_slots: bool
) -> BatchShape | None:
    """How sequences run together, unquantised; None if they cannot."""
    if not bare.layout.batches:
        return None
    # A model may do more with a prompt's cache than with a batched one, so that it can have the one in its slot and
    # not the other.
    for in_slots in (True, False) if bare.layout.in_slots and may_be_in_slots else (False,):
        shape = replace(bare, prompts_in_slots=in_slots)
        if _agree(model, shape, prompts, alone, tolerance(alone.dtype)):
            return shape
    return None


def _quantized(
    model: nn.Module, plain: BatchShape, options: ModelOptions, prompts: list[PromptCache], alone: mx.array
) -> BatchShape:
    key_bits, value_bits = cache_bits(options)
    if key_bits is None or value_bits is None:
        missing = "kv_key_bits" if key_bits is None else "kv_value_bits"
        message = f"Give {missing} too, or kv_bits for both: keys and values are quantised together."
        raise ServerError("load_failed", message, missing)
    layout = plain.layout.quantized(key_bits, value_bits, options.kv_group_size)
    changed = set(plain.layout.kinds) - set(layout.kinds)
    head_sizes = {array.size for kind in changed for array in kind.token_arrays}
    if not head_sizes:
        raise _no_quantization("it has no layer of full attention")
    if any(size % options.kv_group_size for size in head_sizes):
        raise ServerError(
            "load_failed",
            f"kv_group_size {options.kv_group_size} does not divide the size of this model's heads "
            f"({', '.join(map(str, sorted(head_sizes)))}): take 32, or leave kv_bits out.",
            "kv_group_size",
        )
    shape = replace(plain, layout=layout)
    if not _agree(model, shape, prompts, alone, QUANTIZED_TOLERANCE[min(key_bits, value_bits)]):
        raise _no_quantization(
            "its attention does not take quantised keys (attention sinks, for one, do not)"
        )
    return shape


def _no_quantization(reason: str) -> ServerError:
    return ServerError(
        "load_failed", f"kv_bits cannot be used with this model: {reason}. Start without it.", "kv_bits"
    )


def _agree(
    model: nn.Module, shape: BatchShape, prompts: list[PromptCache], alone: mx.array, tolerance: float
) -> bool:
    """Whether two sequences of different length give in two steps of a batch what they give alone, the second of them
    computed in its slot where prompts are to be."""
    group = BatchedGroup(model, shape)
    slots: list[Slot] = []
    try:
        for prompt, length in zip(prompts, PROBE_LENGTHS, strict=True):
            request = SlotRequest(length=length, growth=2, length_class=0)
            behind = not group.empty
            slot = group.reserve(request, growth=2, following=0)
            slots.append(slot)
            if behind and shape.prompts_in_slots:
                prompt = group.prompt_cache(slot)
                mx.eval(model(mx.arange(1, length + 1)[None], cache=prompt))
            group.join(slot, prompt, shift=0)
        together = _two_steps(lambda: group.forward(mx.array([[1]] * len(prompts))))
        mx.eval(together)
    except FAILURES as error:
        log.info("a batch of two sequences fails: %s", error)
        return False
    finally:
        _let_go(group, slots)
    return is_near(together, alone, tolerance)


def can_rewind(model: nn.Module, shape: BatchShape) -> bool:
    """Whether two sequences of a batch take tokens back so that they go on as they do alone. Raises
    `ServerError("load_failed")` if the model does not run."""
    _, alone = _computed_alone(model)
    return _rewinds(model, shape, alone)


def _let_go(group: BatchedGroup, slots: list[Slot]) -> None:
    """Free the memory of a trial at once: a group and its slots refer to each other."""
    for slot in slots:
        group.leave(slot)


def _rewinds(model: nn.Module, shape: BatchShape, alone: mx.array) -> bool:
    """Whether two sequences of a batch, of which each has forgotten some tokens of a step, go on as they do alone."""
    layout = shape.layout
    if not layout.rewinds:
        return False
    group = BatchedGroup(model, shape)
    slots: list[Slot] = []
    try:
        layout.tell_calls()
        # Each keeps so many of the step's tokens that it stands where its prompt among `PROBE_LENGTHS` ends.
        kept = (1, 2)
        step = []
        for length, count in zip(PROBE_LENGTHS, kept, strict=True):
            request = SlotRequest(length=length - count, growth=4, length_class=0)
            slot = group.reserve(request, growth=4, following=0)
            slots.append(slot)
            group.join(slot, probe_prompt(model, length - count), shift=0)
            step.append([*range(length - count + 1, length + 1), *[1] * (3 - count)])
        group.forward(mx.array(step))
        group.rewind({index: 3 - count for index, count in enumerate(kept)})
        together = group.forward(mx.array([[1]] * len(kept)))
        mx.eval(together)
    except FAILURES as error:
        log.info("sequences cannot take tokens back: %s", error)
        return False
    finally:
        _let_go(group, slots)
    return is_near(together, alone[:, :1], tolerance(alone.dtype))
