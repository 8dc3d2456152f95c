"""In 16 bits on a GPU, the trials at load find every wrong batch and let every right one pass."""

import re
from collections.abc import Callable, Iterator
from inspect import getattr_static
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.device import DevicePlan
from pippin.engines.language.kv_cache import agreement, probe
from pippin.engines.language.kv_cache.agreement import CASTS_AT_ONCE, TOLERANCE
from pippin.engines.language.kv_cache.kinds.attention import BatchedAttention
from pippin.engines.language.kv_cache.kinds.base import SlotTable
from pippin.engines.language.kv_cache.kinds.state import BatchedState
from pippin.engines.language.kv_cache.layout import arrays_of, new_prompt_cache
from pippin.engines.language.kv_cache.probe import Batching, choose_batching
from pippin.engines.language.model.weights import load_weights
from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.engines.tiny_models import ARCHITECTURES, TinyModels

PLAN = DevicePlan(
    run_type="bfloat16",
    dequantize=False,
    prefill_chunk=32,
    wired_limit=None,
    allocator_cache=1 << 26,
    memory_limit=1 << 33,
)
JUDGED = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss")
RECURRENT = ("qwen3_next", "lfm2", "mamba2")
BY_DAY = ("llama", "lfm2")
BY_NIGHT = [
    pytest.param(name, marks=pytest.mark.long) for name in (*JUDGED, *RECURRENT) if name not in BY_DAY
]
NOISY = ("llama", "qwen3_moe", "gpt_oss", "qwen3_next", "gemma3_text")
NOISIEST = ("gpt_oss",)
PATTERNS = 5
DEEP = {"num_hidden_layers": 6}


def loaded(folder: Path) -> Any:
    info = ModelInfo(id="tiny", kind="language", path=str(folder))
    model, _ = load_weights(info, PLAN, lambda *_: None)
    return model


# Each fault takes the place of a method of the batch and is handed what that was.


def turned(by: int) -> Callable[..., Any]:
    def begin(own: Any, slots: Any, count: int) -> None:
        own(slots, count)
        slots.offset_before, slots.offset_after = slots.offset_before + by, slots.offset_after + by

    return begin


def turned_as_the_longest(own: Any, slots: Any, count: int) -> None:
    own(slots, count)
    slots.offset_before, slots.offset_after = slots.longest, slots.longest + count


def not_advanced(own: Any, slots: Any, taken: Any) -> None:
    pass


def advanced_twice(own: Any, slots: Any, taken: Any) -> None:
    taken = list(taken)
    own(slots, taken)
    own(slots, taken)


def unmasked(own: Any, cache: Any, *given: Any, **named: Any) -> None:
    pass


def masked(change: Callable[[mx.array], mx.array]) -> Callable[..., Any]:
    def make_mask(own: Any, cache: Any, count: int, **named: Any) -> Any:
        mask = own(cache, count, **{**named, "return_array": True})
        return change(mask) if isinstance(mask, mx.array) else mask

    return make_mask


def first_unseen(mask: mx.array) -> mx.array:
    return mask & (mx.arange(mask.shape[-1]) > 0)


def newest_of_the_longest_unseen(mask: mx.array) -> mx.array:
    return mask & (mx.arange(mask.shape[-1]) < mask.shape[-1] - 1)


def second_unseen(mask: mx.array) -> mx.array:
    return mask & (mx.arange(mask.shape[-1]) != 1)


def one_more_seen(mask: mx.array) -> mx.array:
    return mask | mx.concatenate([mx.zeros_like(mask[..., :1]), mask[..., :-1]], axis=-1)


def masks_of_each_other(mask: mx.array) -> mx.array:
    return mask[::-1]


def written_at_the_longest(own: Any, cache: Any, buffer: mx.array, new: mx.array) -> mx.array:
    slots = cache.slots
    buffer[slots.low : slots.high, :, slots.longest : slots.longest + slots.count] = new
    return buffer


def not_written(own: Any, cache: Any, buffer: mx.array, new: mx.array) -> mx.array:
    return buffer


def written_to_each_other(own: Any, cache: Any, buffer: mx.array, new: mx.array) -> mx.array:
    written: mx.array = own(cache, buffer, new[::-1])
    return written


def values_as_keys(own: Any, cache: Any) -> Any:
    parts = own(cache)
    return parts[0], parts[0]


def keys_of_each_other(own: Any, cache: Any) -> Any:
    parts = own(cache)
    return parts[0][::-1], parts[1]


def values_of_each_other(own: Any, cache: Any) -> Any:
    parts = own(cache)
    return parts[0], parts[1][::-1]


def stored_without_its_end(own: Any, cache: Any, slot: int, prompt: Any) -> None:
    cache.write(slot, prompt.keys[..., : prompt.offset - 1, :], prompt.values[..., : prompt.offset - 1, :], 0)


def stored_a_place_late(own: Any, cache: Any, slot: int, prompt: Any) -> None:
    cache.write(slot, prompt.keys[..., : prompt.offset, :], prompt.values[..., : prompt.offset, :], 1)


def state_of_each_other(own: Any, cache: Any, index: int) -> mx.array | None:
    state: mx.array | None = own(cache, index)
    return None if state is None else state[::-1]


def state_that_stays(own: Any, cache: Any, index: int, value: mx.array) -> None:
    if cache.cache[index] is None:
        own(cache, index, value)


def state_in_the_first_slot(own: Any, cache: Any, slot: int, states: Any) -> None:
    own(cache, cache.slots.low, states)


def not_rewound(own: Any, slots: Any, index: int, tokens: int) -> None:
    pass


def rewound_too_far(own: Any, slots: Any, index: int, tokens: int) -> None:
    own(slots, index, tokens + 1)


def states_not_rewound(own: Any, cache: Any, tokens: Any) -> None:
    pass


Faults = dict[str, tuple[type, str, Callable[..., Any]]]
FAULTS: Faults = {
    "rotary positions one too small": (SlotTable, "begin", turned(-1)),
    "rotary positions one too large": (SlotTable, "begin", turned(1)),
    "one rotary position for both": (SlotTable, "begin", turned_as_the_longest),
    "a step that does not count": (SlotTable, "advance", not_advanced),
    "a step that counts twice": (SlotTable, "advance", advanced_twice),
    "no mask": (BatchedAttention, "make_mask", unmasked),
    "first token unseen": (BatchedAttention, "make_mask", masked(first_unseen)),
    "second token unseen": (BatchedAttention, "make_mask", masked(second_unseen)),
    "newest token of the longest unseen": (
        BatchedAttention,
        "make_mask",
        masked(newest_of_the_longest_unseen),
    ),
    "one token too many seen": (BatchedAttention, "make_mask", masked(one_more_seen)),
    "masks of each other": (BatchedAttention, "make_mask", masked(masks_of_each_other)),
    "written at the longest's place": (BatchedAttention, "_written", written_at_the_longest),
    "not written": (BatchedAttention, "_written", not_written),
    "written to each other's slot": (BatchedAttention, "_written", written_to_each_other),
    "values taken for keys": (BatchedAttention, "keys_and_values", values_as_keys),
    "keys of each other": (BatchedAttention, "keys_and_values", keys_of_each_other),
    "values of each other": (BatchedAttention, "keys_and_values", values_of_each_other),
    "a prompt without its last token": (BatchedAttention, "store", stored_without_its_end),
    "a prompt one place late": (BatchedAttention, "store", stored_a_place_late),
}
OF_STATES: Faults = {
    "states of each other": (BatchedState, "__getitem__", state_of_each_other),
    "states that stay": (BatchedState, "__setitem__", state_that_stays),
    "states in the first slot": (BatchedState, "_put", state_in_the_first_slot),
}
"""Those of recurrent layers."""
OF_REWINDING: Faults = {
    "tokens that are not taken back": (SlotTable, "rewind", not_rewound),
    "one token too many taken back": (SlotTable, "rewind", rewound_too_far),
    "states that are not taken back": (BatchedState, "rewind", states_not_rewound),
}
ALL_FAULTS: Final = FAULTS | OF_STATES | OF_REWINDING


def faults_of(architecture: str) -> Faults:
    return FAULTS if architecture in JUDGED else OF_STATES


def rewinding_faults_of(architecture: str) -> list[str]:
    return [fault for fault in OF_REWINDING if ("states" in fault) == (architecture in RECURRENT)]


def inject(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    owner, name, replacement = ALL_FAULTS[fault]
    own = getattr_static(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: replacement(own, *given, **named))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compute_as_a_gpu(monkeypatch.setattr, Gpu())
    return


@pytest.mark.parametrize("architecture", [*BY_DAY, *BY_NIGHT])
def test_every_fault_of_a_batch_is_found(
    architecture: str, gpu: None, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tiny_models(architecture))
    tried = {fault: with_fault(model, fault, monkeypatch) for fault in faults_of(architecture)}
    assert not [fault for fault, batching in tried.items() if batching.shape is not None]
    tried = {fault: with_fault(model, fault, monkeypatch) for fault in rewinding_faults_of(architecture)}
    assert not [fault for fault, batching in tried.items() if batching.rewinds]
    assert choose_batching(model, ModelOptions()).rewinds


def with_fault(model: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> Batching:
    with monkeypatch.context() as patched:
        for module in (probe, agreement):
            patched.setattr(module, "FAILURES", ())  # a fault that raises would show nothing
        inject(patched, fault)
        return choose_batching(model, ModelOptions())


@pytest.mark.parametrize("architecture", ["llama", pytest.param("gemma3_text", marks=pytest.mark.long)])
def test_a_head_that_would_not_fit_in_float32_is_no_reason_to_judge_by_less(
    architecture: str, gpu: None, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tiny_models(architecture))
    largest = max(each.nbytes for _, each in tree_flatten(model.parameters()))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 0)
    monkeypatch.setattr(mx, "get_memory_limit", lambda: 2 * CASTS_AT_ONCE * (largest - 1))
    batching = choose_batching(model, ModelOptions())
    assert batching.rewinds
    assert set(re.findall(r" of ([\d.]+) ", batching.agreement)) == {str(TOLERANCE)}
    tried = {fault: with_fault(model, fault, monkeypatch) for fault in faults_of(architecture)}
    assert not [fault for fault, batching in tried.items() if batching.shape is not None]


def types_of(model: Any) -> list[mx.Dtype]:
    """Of the logits of a prompt, and of what is kept of it."""
    caches = new_prompt_cache(model)
    logits = model(mx.array([[1, 2]]), cache=caches)
    return [each.dtype for each in (logits, *arrays_of(caches))]


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3_next"])
def test_a_trial_in_float32_leaves_a_model_in_its_own_type(
    architecture: str, gpu: None, tiny_models: TinyModels
) -> None:
    """What a module keeps of a first pass would turn all later ones into float32."""
    model = loaded(tiny_models(architecture))
    before = types_of(model)
    assert mx.bfloat16 in before
    choose_batching(model, ModelOptions())
    assert types_of(model) == before


def sound(architecture: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(folder)
    for seed in range(PATTERNS):
        with monkeypatch.context() as patched:
            compute_as_a_gpu(patched.setattr, Gpu(seed=seed))
            batching = choose_batching(model, ModelOptions())
            assert batching.shape is not None, f"pattern {seed}"
            assert batching.rewinds, f"pattern {seed}"


@pytest.mark.parametrize(
    "architecture",
    [name if name in NOISIEST else pytest.param(name, marks=pytest.mark.long) for name in NOISY],
)
def test_rounding_is_no_fault(
    architecture: str, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound(architecture, tiny_models(architecture, **DEEP), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - {"mamba2", *NOISY}))
def test_rounding_is_no_fault_of_any_architecture(
    architecture: str, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound(architecture, tiny_models(architecture), monkeypatch)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_quantised_keys_and_values_are_held_against_rounded_ones(
    architecture: str, bits: int, gpu: None, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tiny_models(architecture, head_dim=32))
    options = ModelOptions(kv_bits=bits, kv_group_size=32)
    assert choose_batching(model, options).shape is not None
    inject(monkeypatch, "newest token of the longest unseen")
    with pytest.raises(ServerError, match="kv_bits cannot be used"):
        choose_batching(model, options)


def test_float32_is_refused_where_a_model_computes_in_16_bits_all_the_same(tiny_models: TinyModels) -> None:
    model = loaded(tiny_models("llama"))
    with pytest.raises(ServerError, match="dtype float32 cannot be had"):
        choose_batching(model, ModelOptions(dtype="float32"))
    model.set_dtype(mx.float32)
    assert choose_batching(model, ModelOptions(dtype="float32")).shape is not None


@pytest.mark.parametrize(
    "message",
    [
        "[METAL] Command buffer execution failed: Insufficient Memory",
        "[METAL] Command buffer execution failed: Impacting Interactivity",
        "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size",
        "cudaMallocAsync(&p, size, stream) failed: out of memory",
    ],
)
def test_an_error_of_the_gpu_is_not_taken_for_a_model_that_cannot_be_batched(
    message: str, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(message)

    model = loaded(tiny_models("llama"))
    monkeypatch.setattr(BatchedAttention, "make_mask", fail)
    with pytest.raises(ServerError, match="The GPU failed while the model was tried"):
        choose_batching(model, ModelOptions())
