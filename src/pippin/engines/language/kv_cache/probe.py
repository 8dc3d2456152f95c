"""How the sequences of a model can run together, found by trying: a short run that is the warm-up as well."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import mlx.core as mx
import mlx.nn as nn
from msgspec import Struct
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions, asked_type, cache_bits
from pippin.core.errors import ServerError
from pippin.engines.device import require_sound_device
from pippin.engines.language.kv_cache.agreement import (
    FAILURES,
    Passed,
    difference,
    in_float32,
    is_wide,
    ordinary_tokens,
    passed,
    tolerance,
)
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot, SlotGroup, SlotRequest
from pippin.engines.language.kv_cache.layout import (
    CacheLayout,
    arrays_of,
    computed_prompt,
    leaves,
    new_prompt_cache,
    regrouped,
)
from pippin.engines.language.kv_cache.solo_group import SoloGroup
from pippin.engines.refusals import unusable

log = logging.getLogger(__name__)

PROBE_LENGTHS = (5, 3)  # tokens of two sequences of different length
WARM_LENGTHS = (6, 5, 4, 3, 2)  # as many as steps gather from one by one


class Batching(Struct, frozen=True, kw_only=True):
    new_group: Callable[[], SlotGroup]
    vocabulary: int
    layout: CacheLayout  # of prompts
    shape: BatchShape | None  # None: sequences run one at a time
    slack: int  # tokens that a slot has capacity for beyond its sequence
    slot_bytes: Callable[[int], int]  # of one slot with capacity for so many tokens
    rewinds: bool = False  # sequences can forget tokens of their last step
    agreement: str = ""  # how near the trials that passed were to what sequences give alone


class DoesNotRun(ServerError):
    """What the library raised while the model computed its first tokens."""


def choose_batching(
    model: nn.Module, options: ModelOptions, named: str | None = None, launch_bytes: int | None = None
) -> Batching:
    """Raises `ServerError("load_failed")` if the model does not run, or cannot run as the options ask. `named`: what
    tells the model, its options and the machine from others, where the next start leaves out trials that have passed.
    `launch_bytes`: as in `DevicePlan`."""
    started = time.monotonic()
    quantizes = cache_bits(options) != (None, None)
    vocabulary, layout, is_wide = _run_once(model)
    if asked_type(options) == "float32" and not is_wide:
        name = "exact" if options.exact else "dtype float32"
        message = (
            f"{name} cannot be had: this model computes in 16 bits whatever its weights are. Leave it out."
        )
        raise ServerError("load_failed", message, name.split()[0])
    slack = options.cache_block_tokens + options.num_draft_tokens
    with in_float32(model):
        trials = Trials(model, vocabulary, named)
        in_slots = _find_batches(trials, layout, may_be_in_slots=not quantizes)
        if in_slots is None:
            if quantizes:
                raise unusable("kv_bits", "with this model: its caches are of a kind of their own")
            return _one_at_a_time(model, layout, vocabulary)
        plain = BatchShape(layout=layout, slack=slack, prompts_in_slots=in_slots, launch_bytes=launch_bytes)
        shape = _quantized(trials, plain, options) if quantizes else plain
        rewinds = trials.rewinds(plain)
    if not is_wide or mx.default_device().type == mx.DeviceType.gpu:
        _warm_up(model, shape)
    log.info("batches give what sequences give alone, within %s; %.2f s", trials, time.monotonic() - started)
    return Batching(
        new_group=partial(BatchedGroup, model, shape),
        vocabulary=vocabulary,
        layout=shape.layout,
        shape=shape,
        slack=slack,
        slot_bytes=shape.slot_bytes,
        rewinds=rewinds,
        agreement=str(trials),
    )


def _run_once(model: nn.Module) -> tuple[int, CacheLayout, bool]:
    """How many tokens the model has logits for, its caches' layout as it serves, and whether that is in float32. Raises
    `ServerError("load_failed")` if the model does not run."""
    with _running():
        caches = new_prompt_cache(model)
        logits = model(mx.array([[1, 2]]), cache=caches)
        mx.eval(logits, arrays_of(caches))
    return logits.shape[-1], CacheLayout.learn(model, caches), is_wide(logits, *arrays_of(caches))


@contextmanager
def _running() -> Iterator[None]:
    """Raises `ServerError("load_failed")` for a model that does not run within this context."""
    try:
        yield
    except FAILURES as error:
        require_sound_device(error)
        told = str(error).partition("\n")[0]
        raise DoesNotRun("load_failed", f"The model does not run: {type(error).__name__}: {told}") from error


class Reference:
    """Two prompts, their caches, and the logits of two steps after each [2, 2, vocabulary], as the model computes them
    one after the other: what a batch is held against. Raises `ServerError("load_failed")` if the model does not run.
    """

    def __init__(self, model: nn.Module, vocabulary: int, attempt: int) -> None:
        words = ordinary_tokens(vocabulary, PROBE_LENGTHS[0] + 1, attempt)
        self.next = words.pop()
        self.prompts = [words[:length] for length in PROBE_LENGTHS]
        with _running():
            self.caches = self._computed(model)
            self.layout = CacheLayout.learn(model, self.caches[0])
            self.alone = self._steps(model, self._computed(model))
        self.tolerance = tolerance(self.alone, *arrays_of(self.caches[0]))

    def _computed(self, model: nn.Module) -> list[PromptCache]:
        return [computed_prompt(model, prompt) for prompt in self.prompts]

    def _steps(self, model: nn.Module, caches: list[PromptCache]) -> mx.array:
        step = mx.array([[self.next]])
        logits = _two_steps(lambda: mx.concatenate([model(step, cache=cache) for cache in caches]))
        mx.eval(logits)
        return logits

    def rounded(self, model: nn.Module, layout: CacheLayout) -> mx.array:
        """The logits of `alone` if keys and values after the prompts are rounded as the layout keeps them."""
        kept = [
            regrouped(
                caches, (kind.rounded(leaf) for kind, leaf in zip(layout.kinds, leaves(caches), strict=True))
            )
            for caches in self._computed(model)
        ]
        return self._steps(model, kept)


class Trials:
    """Whether sequences of a batch give what they give alone. `str` tells how near those were that passed."""

    def __init__(self, model: nn.Module, vocabulary: int, named: str | None = None) -> None:
        """`named`: as in `choose_batching`."""
        self.model = model
        self._vocabulary = vocabulary
        self._named = named
        self._references: list[Reference] = []
        self._noted: dict[str, Passed] = {}

    def __str__(self) -> str:
        noted = self._noted.items()
        return ", ".join(f"{passed.found:.4f} of {passed.tolerance} ({what})" for what, passed in noted)

    def passes(self, what: str, check: Callable[[Reference], float]) -> bool:
        """Whether a check's difference, as a share of the largest logit, is within the tolerance of a reference."""
        found = passed(what, partial(self._tried, check), self._named)
        if found is not None:
            self._noted[what] = found
        return found is not None

    def _tried(self, check: Callable[[Reference], float], attempt: int) -> Passed:
        if attempt == len(self._references):
            self._references.append(Reference(self.model, self._vocabulary, attempt))
        reference = self._references[attempt]
        return Passed(check(reference), reference.tolerance)

    def rewinds(self, shape: BatchShape) -> bool:
        """Whether two sequences of a batch, of which each has forgotten some tokens of a step, go on as alone."""
        # Not within the trial, which a start leaves out once it has passed: what serves takes tokens back so as well.
        shape.layout.tell_calls()
        return self.passes("taking tokens back", partial(_off_after_rewinding, self.model, shape))


def _two_steps(step: Callable[[], mx.array]) -> mx.array:
    """What two steps give, one behind the other: the second tells whether the first was written down."""
    return mx.concatenate([step(), step()], axis=1)


def _find_batches(trials: Trials, layout: CacheLayout, *, may_be_in_slots: bool) -> bool | None:
    """Whether prompts of a batch are computed in their slots; None if sequences cannot run together."""
    if not layout.batches:
        return None
    # A model may do more with a prompt's cache than with a batched one, so that it can have the one in its slot and
    # not the other.
    for in_slots in (True, False) if layout.in_slots and may_be_in_slots else (False,):
        what = "prompts in slots" if in_slots else "batches"
        if trials.passes(what, partial(_off_together, trials.model, in_slots)):
            return in_slots
    return None


def _one_at_a_time(model: nn.Module, layout: CacheLayout, vocabulary: int) -> Batching:
    log.warning(
        "sequences of this model run one at a time and prompts are not cached: its caches cannot be batched"
    )
    return Batching(
        new_group=partial(SoloGroup, model, layout),
        vocabulary=vocabulary,
        layout=layout,
        shape=None,
        slack=sizes.CAPACITY_STEP,
        slot_bytes=layout.prompt_bytes,
    )


def _quantized(trials: Trials, plain: BatchShape, options: ModelOptions) -> BatchShape:
    key_bits, value_bits = cache_bits(options)
    if key_bits is None or value_bits is None:
        missing = "kv_key_bits" if key_bits is None else "kv_value_bits"
        message = f"Give {missing} too, or kv_bits for both: keys and values are quantised together."
        raise ServerError("load_failed", message, missing)
    layout = plain.layout.quantized(key_bits, value_bits, options.kv_group_size)
    changed = set(plain.layout.kinds) - set(layout.kinds)
    head_sizes = {array.size for kind in changed for array in kind.token_arrays}
    if not head_sizes:
        raise unusable("kv_bits", "with this model: it has no layer of full attention")
    if any(size % options.kv_group_size for size in head_sizes):
        other = "" if any(size % 32 for size in head_sizes) else "take 32, or "
        raise ServerError(
            "load_failed",
            f"kv_group_size {options.kv_group_size} does not divide the size of this model's heads "
            f"({', '.join(map(str, sorted(head_sizes)))}): {other}leave kv_bits out.",
            "kv_group_size",
        )
    form = key_bits, value_bits, options.kv_group_size
    if not trials.passes("quantised keys and values", partial(_off_quantized, trials.model, form)):
        why = "its attention does not take quantised keys (attention sinks, for one, do not)"
        raise unusable("kv_bits", f"with this model: {why}")
    return replace(plain, layout=layout)


def _off_together(model: nn.Module, in_slots: bool, reference: Reference) -> float:
    """How far the logits of a batch are off, its second prompt computed in its slot where prompts are to be."""
    shape = BatchShape(layout=reference.layout, prompts_in_slots=in_slots)
    return difference(_together(model, shape, reference), reference.alone)


def _off_quantized(model: nn.Module, form: tuple[int, int, int], reference: Reference) -> float:
    """How far the logits of a batch of quantised keys and values are off from those of rounded ones."""
    layout = reference.layout.quantized(*form)
    shape = BatchShape(layout=layout, prompts_in_slots=False)
    together = _together(model, shape, reference)
    if not getattr(model, "takes_padding", False):
        return difference(together, reference.rounded(model, layout))
    # It writes into the caches itself, so that nothing can round what it writes: each sequence by itself.
    alone = [_together(model, shape, reference, (index,)) for index in range(len(reference.prompts))]
    return difference(together, mx.concatenate(alone))


def _together(
    model: nn.Module, shape: BatchShape, reference: Reference, indexes: tuple[int, ...] = (0, 1)
) -> mx.array:
    """The logits of two steps of a batch of these sequences of the reference [sequences, 2, vocabulary]."""
    with _tried(model, shape) as (group, reserve):
        for tokens, computed in ((reference.prompts[index], reference.caches[index]) for index in indexes):
            behind, cache = not group.empty, computed
            slot = reserve(len(tokens), 2)
            if behind and shape.prompts_in_slots:
                cache = group.prompt_cache(slot)
                mx.eval(model(mx.array([tokens]), cache=cache))
            group.join(slot, cache, shift=0)
        step = mx.array([[reference.next]] * len(indexes))
        together = _two_steps(lambda: group.forward(step))
        mx.eval(together)
    return together


@contextmanager
def _tried(model: nn.Module, shape: BatchShape) -> Iterator[tuple[BatchedGroup, Callable[[int, int], Slot]]]:
    """A group, and what reserves a slot in it for a prompt of so many tokens that grows by so many. Their memory is
    freed with this context: a group and its slots refer to each other."""
    group = BatchedGroup(model, shape)
    with ExitStack() as leaving:

        def reserve(length: int, growth: int) -> Slot:
            slot = group.reserve(SlotRequest(length=length, growth=growth, length_class=0))
            leaving.callback(group.leave, slot)
            return slot

        yield group, reserve


def _off_after_rewinding(model: nn.Module, shape: BatchShape, reference: Reference) -> float:
    shape = replace(shape, layout=reference.layout)
    with _tried(model, shape) as (group, reserve):
        # Each keeps so many of the step's tokens that it stands where its prompt ends.
        kept = (1, 2)
        step = []
        for tokens, count in zip(reference.prompts, kept, strict=True):
            before, left = tokens[:-count], tokens[-count:]
            group.join(reserve(len(before), 4), computed_prompt(model, before), shift=0)
            step.append([*left, *[reference.next] * (3 - count)])
        group.forward(mx.array(step))
        group.rewind({index: 3 - count for index, count in enumerate(kept)})
        together = group.forward(mx.array([[reference.next]] * len(kept)))
        mx.eval(together)
    return difference(together, reference.alone[:, :1])


def can_rewind(model: nn.Module, layout: CacheLayout) -> bool:
    """Whether two sequences of a batch take tokens back so that they go on as they do alone. Raises
    `ServerError("load_failed")` if the model does not run."""
    with in_float32(model):
        return Trials(model, _run_once(model)[0]).rewinds(BatchShape(layout=layout))


def _warm_up(model: nn.Module, shape: BatchShape) -> None:
    """Have MLX compile what steps of several lengths need, which the trials, in float32, may not have."""
    with _running(), _tried(model, shape) as (group, reserve):
        for length in WARM_LENGTHS:
            group.join(reserve(length, 2), computed_prompt(model, range(1, length + 1)), shift=0)
        logits = group.forward(mx.array([[1]] * len(WARM_LENGTHS)))
        mx.eval(logits, arrays_of(group.view(0, WARM_LENGTHS[0])))
