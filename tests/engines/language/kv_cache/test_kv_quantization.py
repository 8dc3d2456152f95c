"""Keys and values in few bits: close to the model's answer, the same in any company, smaller, or refused by name."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache import slots as sizes
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.kinds.quantized import BatchedQuantized
from pippin.engines.language.kv_cache.slots import SlotGroup
from tests.engines.language.bench import Bench, run_all, watch
from tests.engines.tiny_models import ARCHITECTURES, TinyModels

WIDE = {"head_dim": 32}
PROMPTS = {
    f"r{index}": (tuple((index * 31 + place * 7) % 250 for place in range(20 + index)), 24)
    for index in range(5)
}


@pytest.fixture(scope="module")
def folders(tiny_models: TinyModels) -> dict[str, Path]:
    wide = {
        name
        for name, shape in ARCHITECTURES.items()
        if "head_dim" in shape and name not in ("mamba2", "lfm2")
    }
    return {name: tiny_models(name, **(WIDE if name in wide else {})) for name in ARCHITECTURES}


def quantized(group: SlotGroup) -> list[BatchedQuantized]:
    """The layers of a group whose keys and values are in few bits."""
    assert isinstance(group, BatchedGroup)
    return [cache for cache in group._caches if isinstance(cache, BatchedQuantized)]


def options(bits: int, **more: object) -> ModelOptions:
    return ModelOptions(kv_bits=bits, kv_group_size=32, cache_block_tokens=8, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("architecture", "bits"),
    [
        *((name, bits) for name in ("llama", "qwen3", "qwen3_moe") for bits in (4, 8)),
        *(("llama", bits) for bits in (2, 3, 5, 6)),
    ],
)
def test_a_batch_answers_as_a_quantised_cache_does_alone(
    folders: dict[str, Path], architecture: str, bits: int
) -> None:
    bench = Bench(folders[architecture], options(bits, prefix_cache=False))
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        cache = make_prompt_cache(bench.model)
        logits = bench.model(mx.array([prompt]), cache=cache)[0, -1]
        cache = [layer.to_quantized(group_size=32, bits=bits) for layer in cache]
        for answer in answers[name, 0]:
            assert (logits.max() - logits[answer]).item() < 1e-3
            logits = bench.model(mx.array([[answer]]), cache=cache)[0, -1]


class Rounded(KVCache):  # type: ignore[misc]
    """mlx-lm's cache, whose keys and values are rounded as they come."""

    key_bits, value_bits = 8, 4

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        both = ((keys, self.key_bits), (values, self.value_bits))
        rounded = (mx.dequantize(*mx.quantize(array, 32, bits), 32, bits) for array, bits in both)
        found: tuple[mx.array, mx.array] = super().update_and_fetch(*rounded)
        return found


def test_keys_and_values_may_have_different_bits(folders: dict[str, Path]) -> None:
    given = ModelOptions(
        kv_bits=8, kv_value_bits=4, kv_group_size=32, cache_block_tokens=8, prefix_cache=False
    )
    bench = Bench(folders["llama"], given)
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        made = make_prompt_cache(bench.model)
        logits = bench.model(mx.array([prompt]), cache=made)[0, -1]
        cache = [Rounded() for _ in made]
        for layer, plain in zip(cache, made, strict=True):
            layer.update_and_fetch(plain.keys[..., : plain.offset, :], plain.values[..., : plain.offset, :])
        for answer in answers[name, 0]:
            assert (logits.max() - logits[answer]).item() < 1e-3
            logits = bench.model(mx.array([[answer]]), cache=cache)[0, -1]


def test_bits_of_one_of_both_are_refused_by_name(folders: dict[str, Path]) -> None:
    with pytest.raises(ServerError, match="Give kv_value_bits too") as caught:
        Bench(folders["llama"], ModelOptions(kv_key_bits=4, kv_group_size=32))
    assert caught.value.report.param == "kv_value_bits"


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_a_hit_in_eight_bits_stays_close(folders: dict[str, Path], architecture: str) -> None:
    bench = Bench(folders[architecture], options(8))
    prompt = PROMPTS["r4"][0] * 3
    run_all(bench, {"a": (prompt, 8)})
    answers, ends = run_all(bench, {"b": (prompt, 8)})
    assert ends["b", 0].usage.cached_tokens >= 64
    bench.judge(prompt, answers["b", 0], tie=0.3)


def test_a_sequence_is_quantised_from_the_start_that_is_set(folders: dict[str, Path]) -> None:
    bench = Bench(folders["llama"], options(4, quantized_kv_start=40))
    prompt, other = PROMPTS["r0"][0], PROMPTS["r4"][0]
    engine = bench.engine
    watched = watch(engine)
    engine.submit(bench.job("short", prompt, 15))
    engine.submit(bench.job("long", other, 30))
    kinds = set()
    while engine.busy:
        engine.step()
        kinds |= {
            (row.sequence.request.job.id, not quantized(row.slot.group), len(row.sequence.tokens) - 1 >= 40)
            for row in engine.batch.running
            if row.next_token is None
        }
    bench.judge(prompt, watched["short", 0])
    assert ("long", True, False) in kinds
    assert ("long", False, True) in kinds
    assert not any(name == "short" and not plain for name, plain, _ in kinds)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_a_sequence_that_outgrows_its_neighbours_is_not_quantised_again(
    folders: dict[str, Path], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in few bits once is not the same after it was unpacked and packed again."""
    monkeypatch.setattr(sizes, "LENGTH_CLASSES", (40, 60))
    monkeypatch.setattr(sizes, "GROWTH_CHARGED", 4)
    bench = Bench(folders[architecture], options(4, prefix_cache=False))
    engine = bench.engine
    engine.submit(bench.job("a", PROMPTS["r0"][0] + PROMPTS["r4"][0][:14], 40, n=2))
    held: dict[int, tuple[SlotGroup, list[mx.array]]] = {}
    moves = 0
    while engine.busy:
        engine.step()
        for row in engine.batch.running:
            slot = row.slot
            layers = quantized(slot.group)
            parts = [mx.array(buffer[slot.index, :, :34]) for layer in layers for buffer in layer.buffers]
            mx.eval(parts)
            group, before = held.get(row.sequence.choice, (slot.group, parts))
            moves += group is not slot.group
            assert all(map(mx.array_equal, before, parts))
            held[row.sequence.choice] = slot.group, parts
    assert moves == 4


def test_the_tree_and_the_batch_are_smaller(folders: dict[str, Path]) -> None:
    sizes = {}
    for bits in (None, 8, 4):
        bench = Bench(folders["llama"], ModelOptions(cache_block_tokens=8) if bits is None else options(bits))
        run_all(bench, {"a": (PROMPTS["r4"][0], 1)})
        sizes[bits] = bench.engine.stats().cache.bytes
    assert sizes[8] * 3 < sizes[None]
    assert sizes[4] * 5 < sizes[None]


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("mamba2", "no layer of full attention"), ("gpt_oss", "attention sinks"), ("lfm2", "does not divide")],
)
def test_a_model_that_cannot_says_so_at_the_start(
    folders: dict[str, Path], architecture: str, reason: str
) -> None:
    with pytest.raises(ServerError, match=reason) as caught:
        Bench(folders[architecture], options(8))
    assert caught.value.report.kind == "load_failed"
    assert caught.value.report.param in ("kv_bits", "kv_group_size")
