"""Keys and values in few bits: close to the model's answer, the same in any company, smaller, or refused by name."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Finished
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.attention import BatchedQuantized
from pippin.engines.language.kv_cache.kinds.base import SlotGroup
from pippin.engines.language.sampling.sampler import SampledToken
from tests.engines.language.bench import MAC, PLAN, Bench, run_all
from tests.engines.tiny_models import ARCHITECTURES, TinyModels

WIDE = {"head_dim": 32}
# Another order of sums takes a key of 3 bits to its neighbour now and then.
SAME = 4e-3 if MAC is None else 0.06
"""Logprobs in float32 that differ less are the same: sums in another order move them, through layers that round."""
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
    return [cache for cache in group.caches if isinstance(cache, BatchedQuantized)]


def options(bits: int, **more: object) -> ModelOptions:
    return ModelOptions(kv_bits=bits, kv_group_size=32, cache_block_tokens=8, **more)  # type: ignore[arg-type]


class Rounded(KVCache):  # type: ignore[misc]
    """mlx-lm's cache, whose keys and values are rounded as they come: mlx-lm has none with two numbers of bits."""

    def __init__(self, key_bits: int, value_bits: int, group_size: int) -> None:
        super().__init__()
        self.forms = (group_size, key_bits), (group_size, value_bits)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        both = zip((keys, values), self.forms, strict=True)
        rounded = (mx.dequantize(*mx.quantize(array, *form), *form) for array, form in both)
        found: tuple[mx.array, mx.array] = super().update_and_fetch(*rounded)
        return found


def quantized_by_mlx_lm(cache: list[Any], key_bits: int, value_bits: int, group_size: int) -> list[Any]:
    """What a prompt left in mlx-lm's caches, in few bits."""
    if key_bits == value_bits:
        return [layer.to_quantized(group_size=group_size, bits=key_bits) for layer in cache]
    found = [Rounded(key_bits, value_bits, group_size) for _ in cache]
    for layer, plain in zip(found, cache, strict=True):
        layer.update_and_fetch(plain.keys[..., : plain.offset, :], plain.values[..., : plain.offset, :])
    return found


def logprobs_noted(bench: Bench) -> dict[str, list[SampledToken]]:
    """Each request's tokens with their logprobs, noted as the engine accepts them."""
    noted: dict[str, list[SampledToken]] = {}
    accept = bench.engine.lifecycle.accept

    def noting(running: Any, sampled: SampledToken) -> None:
        noted.setdefault(running.sequence.request.job.id, []).append(sampled)
        accept(running, sampled)

    bench.engine.lifecycle.accept = noting  # type: ignore[method-assign]
    return noted


def hold_against_mlx_lm(
    model: Any, prompt: tuple[int, ...], answer: list[SampledToken], bits: tuple[int, int], group_size: int
) -> None:
    """All alternatives have the logprobs of a prompt computed as it is and a cache quantised then, token by token."""
    cache = make_prompt_cache(model)
    logits = model(mx.array([prompt]), cache=cache)[0, -1]
    cache = quantized_by_mlx_lm(cache, *bits, group_size)
    for place, sampled in enumerate(answer):
        logprobs = logits - mx.logsumexp(logits)
        for alternative in sampled.top:
            distance = abs(logprobs[alternative.id].item() - alternative.logprob)
            assert distance < SAME, f"token {place}: {alternative} is off by {distance}"
        logits = model(mx.array([[sampled.token]]), cache=cache)[0, -1]


@pytest.mark.parametrize(
    ("architecture", "bits"),
    [
        *((name, (bits, bits)) for name in ("llama", "qwen3", "qwen3_moe") for bits in (4, 8)),
        *(("llama", (bits, bits)) for bits in (2, 3, 5, 6)),
        *(("llama", bits) for bits in ((8, 4), (3, 6), (5, 2))),
    ],
)
def test_the_logits_of_a_batch_are_those_of_mlx_lm_with_its_cache_quantised_after_the_prompt(
    folders: dict[str, Path], architecture: str, bits: tuple[int, int]
) -> None:
    bench = Bench(folders[architecture], options(bits[0], kv_value_bits=bits[1], prefix_cache=False))
    noted = logprobs_noted(bench)
    prompts = {name: (prompt, 10) for name, (prompt, _) in list(PROMPTS.items())[:3]}
    run_all(bench, prompts, logprobs=20)
    for name, (prompt, tokens) in prompts.items():
        assert len(noted[name]) == tokens
        hold_against_mlx_lm(bench.model, prompt, noted[name], bits, 32)


@pytest.mark.long
@pytest.mark.parametrize("bits", [(3, 3), (5, 5), (8, 4)])
def test_a_real_model_has_the_logits_of_mlx_lm_whatever_the_bits(
    demo_model: Path, bits: tuple[int, int]
) -> None:
    given = ModelOptions(kv_bits=bits[0], kv_value_bits=bits[1], prefix_cache=False)  # type: ignore[arg-type]
    bench = Bench(demo_model, given, msgspec.structs.replace(PLAN, dequantize=False))
    prompt = tuple(bench.tokenizer.encode("The fisherman looked at the sea, and then he said to his son:"))
    noted = logprobs_noted(bench)
    run_all(bench, {"a": (prompt, 16)}, logprobs=20)
    judge, _ = load_model(demo_model)
    judge.set_dtype(mx.float32)
    hold_against_mlx_lm(judge, prompt, noted["a"], bits, given.kv_group_size)


def test_mlx_lm_alone_shows_the_last_token_of_a_prompt_the_quantised_cache_and_we_do_not(
    folders: dict[str, Path],
) -> None:
    """Why its text may be another in few bits: its `generate_step` quantises one token before the prompt's end."""
    bench = Bench(folders["llama"], options(2, prefix_cache=False))
    prompt, tokens = PROMPTS["r4"]
    noted = logprobs_noted(bench)
    run_all(bench, {"a": (prompt, tokens)}, logprobs=20)
    cache = make_prompt_cache(bench.model)
    bench.model(mx.array([prompt[:-1]]), cache=cache)
    cache = quantized_by_mlx_lm(cache, 2, 2, 32)
    by_hand = bench.model(mx.array([prompt[-1:]]), cache=cache)[0, -1]
    theirs = next(
        generate_step(
            mx.array(prompt), bench.model, max_tokens=1, kv_bits=2, kv_group_size=32, quantized_kv_start=0
        )
    )[1]
    assert mx.allclose(by_hand - mx.logsumexp(by_hand), theirs, atol=SAME)
    first = noted["a"][0].top[0]
    assert abs(theirs[first.id].item() - first.logprob) > 4 * SAME


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


class Quantized:
    """Counts the numbers that MLX quantises, and notes what the first layer in few bits of the last step has."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers = 0
        self.held: list[mx.array] = []
        own, accept = mx.quantize, bench.engine.lifecycle.accept

        def quantize(array: mx.array, *given: Any, **named: Any) -> Any:
            self.numbers += array.size
            return own(array, *given, **named)

        def accepting(running: Any, sampled: SampledToken) -> None:
            slot = running.slot
            layers = quantized(slot.group)
            parts = [buffer[slot.index, :, : slot.length] for layer in layers for buffer in layer.buffers]
            self.held = [part + 0 for part in parts]  # copies
            mx.eval(self.held)
            accept(running, sampled)

        monkeypatch.setattr(mx, "quantize", quantize)
        monkeypatch.setattr(bench.engine.lifecycle, "accept", accepting)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_no_token_of_a_conversation_is_quantised_twice(
    folders: dict[str, Path],
    architecture: str,
    bits: int,
    kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its slot has the very words of the turn before, those of the answer among them, and the kernels quantise what
    they decode themselves."""
    if kernels and (MAC is not None or why_missing() is not None):
        pytest.skip("the kernels are for CPUs alone")
    plan = msgspec.structs.replace(PLAN, kernels=kernels)
    bench = Bench(folders[architecture], options(bits), plan)
    if kernels:
        from pippin.engines.language.kernels.decoder import KernelDecoder  # only where the kernels are built

        assert isinstance(bench.model, KernelDecoder)
    counted = Quantized(bench, monkeypatch)
    first = PROMPTS["r4"][0] * 3
    answers, _ = run_all(bench, {"a": (first, 30)})
    before, layers = counted.held, len(counted.held) // 6
    of_a_token = layers * 2 * before[1].shape[0] * WIDE["head_dim"]
    assert counted.numbers == (len(first) + (0 if kernels else 29)) * of_a_token
    counted.numbers = 0
    again = (*first, *answers["a", 0], 7, 9, 11)
    _, ends = run_all(bench, {"b": (again, 2)})
    known = ends["b", 0].usage.cached_tokens
    assert known >= len(first) + 24
    assert counted.numbers == (len(again) - known + (0 if kernels else 1)) * of_a_token
    assert all(
        mx.array_equal(old[:, :known], new[:, :known]) for old, new in zip(before, counted.held, strict=True)
    )


def test_a_conversation_that_parts_inside_a_block_has_the_words_of_both_in_order(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(folders["llama"], ModelOptions(kv_bits=4, kv_group_size=32, cache_block_tokens=16))
    counted = Quantized(bench, monkeypatch)
    first = PROMPTS["r4"][0] * 2
    other = (*first[:24], *reversed(first))
    held: list[list[mx.array]] = []
    ends: dict[tuple[str, int], Finished] = {}
    for name, prompt in {"a": first, "b": other, "c": (*other, 1, 2, 3)}.items():
        ends |= run_all(bench, {name: (prompt, 1)})[1]
        held.append(counted.held)
    assert [ends[name, 0].usage.cached_tokens for name in "abc"] == [0, 24, 64]
    for before, after, known in zip(held[:-1], held[1:], (24, 64), strict=True):
        assert all(map(mx.array_equal, *([part[:, :known] for part in parts] for parts in (before, after))))


@pytest.mark.float32
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
