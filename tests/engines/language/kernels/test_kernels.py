"""The kernels for CPUs give what MLX gives in float32, with every instruction set that this machine has."""

from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.activations import swiglu_oai

pk = pytest.importorskip("pippin_kernels", reason="the kernels are not built: make kernels")
if pk.why_unavailable() is not None:
    pytest.skip(pk.why_unavailable(), allow_module_level=True)

TOLERANCE = 5e-6  # of the largest number of a product
TYPES = (mx.float32, mx.float16, mx.bfloat16)
instruction_sets = pytest.mark.parametrize("name", pk.instruction_sets())


@cache
def kernels(name: str, threads: int = 2) -> Any:
    return pk.Kernels(threads, name)


def stored(array: mx.array) -> np.ndarray:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_near(found: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-30)


def assert_summed(found: np.ndarray, expected: np.ndarray, sizes: np.ndarray, terms: int) -> None:
    """Whether sums of so many terms in float32, in any order, may have given this: of n roundings by half a unit, a sum
    is off by at most n u / (1 - n u) of the `sizes`, which its terms have in all (Higham, Accuracy and Stability of
    Numerical Algorithms, 3.1). How near to zero a sum is does not count: its terms may cancel out."""
    assert found.shape == expected.shape
    # A weight is scaled, shifted and multiplied, and a bias of the layer is added.
    roundings = (terms + 4) * 2**-24
    assert (np.abs(found - expected) <= roundings / (1 - roundings) * sizes).all()


@instruction_sets
@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.sampled_from([32, 64, 128]),
    type=st.sampled_from(TYPES),
    rows=st.integers(1, 70),
    groups=st.integers(1, 10),
    tokens=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 50]),
    with_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_with_packed_weights_are_those_with_the_numbers_they_stand_for(
    name: str,
    bits: int,
    group: int,
    type: mx.Dtype,
    rows: int,
    groups: int,
    tokens: int,
    with_bias: bool,
    seed: int,
) -> None:
    weights = mx.array(normal(rows, groups * group, seed=seed))
    words, scales, biases = mx.quantize(weights, group, bits)
    scales, biases = scales.astype(type), biases.astype(type)
    exact = np.array(
        mx.dequantize(words, scales.astype(mx.float32), biases.astype(mx.float32), group, bits), np.float64
    )
    addend = normal(rows, seed=seed + 1) if with_bias else None
    matrix = pk.Matrix.packed(
        np.array(words), stored(scales), stored(biases), bits=bits, group=group, addend=addend
    )
    x = normal(tokens, groups * group, seed=seed + 2)
    added = 0 if addend is None else addend.astype(np.float64)
    expected = x.astype(np.float64) @ exact.T + added
    shifts = np.repeat(np.array(biases.astype(mx.float32), np.float64), group, axis=1)
    sizes = np.abs(x) @ (np.abs(exact - shifts) + np.abs(shifts)).T + np.abs(added)
    assert_summed(kernels(name).product(matrix, x), expected, sizes, groups * group)
    indexes = np.arange(rows, dtype=np.int32)[::-1].copy()
    assert_near(kernels(name).rows(matrix, indexes), exact[::-1], 1e-6)


@instruction_sets
@given(
    format=st.sampled_from(["mxfp4", "nvfp4"]),
    rows=st.integers(1, 70),
    groups=st.integers(1, 70),
    tokens=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 50]),
    with_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_with_fp4_are_those_with_the_numbers_they_stand_for(
    name: str, format: str, rows: int, groups: int, tokens: int, with_bias: bool, seed: int
) -> None:
    group = {"mxfp4": 32, "nvfp4": 16}[format]
    random = np.random.default_rng(seed)
    words = random.integers(0, 2**32, (rows, groups * group // 8), np.uint32)
    # Scales of all sizes that a model may have, and so of both signs in nvfp4.
    scales = (
        random.integers(110, 135, (rows, groups))
        if format == "mxfp4"
        else random.integers(0, 255, (rows, groups))
    )
    scales = np.where(scales == 127, 0, scales).astype(np.uint8)
    exact = fp4_numbers(words, scales, format)
    addend = normal(rows, seed=seed + 1) if with_bias else None
    matrix = pk.Matrix.float4(words, scales, format=format, addend=addend)
    x = normal(tokens, groups * group, seed=seed + 2)
    added = 0 if addend is None else addend.astype(np.float64)
    expected = x.astype(np.float64) @ exact.T + added
    sizes = np.abs(x) @ np.abs(exact).T + np.abs(added)
    assert_summed(kernels(name).product(matrix, x), expected, sizes, groups * group)
    indexes = np.arange(rows, dtype=np.int32)[::-1].copy()
    assert_near(kernels(name).rows(matrix, indexes), exact[::-1], 1e-7)


def fp4_numbers(words: np.ndarray, scales: np.ndarray, format: str) -> np.ndarray:
    """What MLX takes the weights for, in float64. It is given four groups at least, as it wants."""
    groups, size = scales.shape[1], words.shape[1] // scales.shape[1]
    more = -groups % 4
    wide = np.pad(words, ((0, 0), (0, more * size))), np.pad(scales, ((0, 0), (0, more)))
    found = mx.dequantize(*map(mx.array, wide), mode=format, dtype=mx.float32)
    return np.array(found, np.float64)[:, : words.shape[1] * 8]


def rounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vectors [tokens, columns] as int8 has them, each 32 columns with a factor of their own; and how much a number
    may differ from that because it lies between two, which the last bit of float32 decides."""
    out, doubt = np.empty(x.shape), np.zeros(x.shape)
    for start in range(0, x.shape[1], 32):
        part = x[:, start : start + 32]
        largest = np.abs(part).max(1, keepdims=True)
        inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        factor = (largest / np.float32(127)).astype(np.float64)
        out[:, start : start + 32] = np.rint(part * inverse) * factor
        between = np.abs(np.abs(part * inverse) % 1 - 0.5) < 1e-4
        doubt[:, start : start + 32] = between * factor
    return out, doubt


int8_sets = pytest.mark.parametrize("int8", pk.int8_sets())


@int8_sets
@given(
    format=st.sampled_from([2, 3, 4, 5, 6, 8, "mxfp4", "nvfp4"]),
    group=st.sampled_from([32, 64, 128]),
    type=st.sampled_from(TYPES),
    rows=st.integers(1, 70),
    groups=st.integers(1, 10),
    tokens=st.sampled_from([1, 2, 4, 5, 8, 9, 17, 40]),
    with_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_with_int8_are_those_with_the_rounded_vectors(
    int8: str,
    format: int | str,
    group: int,
    type: mx.Dtype,
    rows: int,
    groups: int,
    tokens: int,
    with_bias: bool,
    seed: int,
) -> None:
    addend = normal(rows, seed=seed + 1) if with_bias else None
    if isinstance(format, str):
        size = {"mxfp4": 32, "nvfp4": 16}[format]
        random = np.random.default_rng(seed)
        words = random.integers(0, 2**32, (rows, groups * size // 8), np.uint32)
        scales = random.integers(100, 126, (rows, groups)).astype(np.uint8)
        matrix = pk.Matrix.float4(words, scales, format=format, addend=addend)
        exact = fp4_numbers(words, scales, format)
    else:
        weights = mx.array(normal(rows, groups * group, seed=seed))
        words, scales, biases = mx.quantize(weights, group, format)
        scales, biases = scales.astype(type), biases.astype(type)
        wide = scales.astype(mx.float32), biases.astype(mx.float32)
        exact = np.array(mx.dequantize(words, *wide, group, format), np.float64)
        matrix = pk.Matrix.packed(
            np.array(words), stored(scales), stored(biases), bits=format, group=group, addend=addend
        )
    x = normal(tokens, matrix.columns, seed=seed + 2)
    x[:, :16] = 0 if seed % 3 else x[:, :16] * 100
    rounding = pk.Kernels(2)
    rounding.round_activations(int8)
    found = rounding.product(matrix, x)
    numbers, doubt = rounded(x)
    expected = numbers @ exact.T + (0 if addend is None else addend)
    # Weights are dequantised in parts here, so the biases' share counts beside what is left of their sum.
    parts = np.abs(numbers) @ (np.abs(exact) + np.abs(exact).max(1, keepdims=True)).T
    allowed = 2e-6 * (parts + np.abs(expected) + 1) + doubt @ np.abs(exact).T
    assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("int8", [name for name in pk.int8_sets() if name != "baseline"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8, 11, 16, 35])
def test_products_in_whole_numbers_are_as_exact_as_sums_in_float32(int8: str, bits: int, tokens: int) -> None:
    weights = mx.array(normal(40, 640, seed=bits))
    parts = mx.quantize(weights, 64, bits)
    exact = np.array(mx.dequantize(*parts, 64, bits), np.float64)
    matrix = pk.Matrix.packed(*map(stored, parts), bits=bits, group=64)
    x = normal(tokens, 640, seed=tokens)
    x[:, 5::97] *= 1000  # as some numbers in the middle of a model are
    whole, floating = pk.Kernels(2), pk.Kernels(2)
    whole.whole_numbers(int8)
    floating.whole_numbers(None)
    found, other = whole.product(matrix, x), floating.product(matrix, x)
    expected = x.astype(np.float64) @ exact.T
    allowed = 5e-7 * (np.abs(x).astype(np.float64) @ (np.abs(exact) + np.abs(exact).max(1, keepdims=True)).T)
    assert (np.abs(found - expected) <= allowed).all()
    assert (np.abs(other - expected) <= allowed).all()
    if (tokens <= 4 or int8 == "avx2") and bits < 8:
        assert (found != other).any()  # or one of them was not asked


@pytest.mark.skipif("avx2" not in pk.int8_sets(), reason="other instruction sets add up in other ways")
@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 8, 9, 12, 15, 16, 19, 40])
def test_with_avx2_a_vector_gets_the_same_bits_in_any_company(bits: int, tokens: int) -> None:
    parts = mx.quantize(mx.array(normal(40, 1600, seed=bits)), 32, bits)
    matrix = pk.Matrix.packed(*map(stored, parts), bits=bits, group=32, addend=normal(40, seed=1))
    x = normal(tokens, 1600, seed=tokens)
    whole = pk.Kernels(2)
    whole.whole_numbers("avx2")
    alone = [whole.product(matrix, each[None])[0] for each in x]
    np.testing.assert_array_equal(whole.product(matrix, x), alone)


LARGEST_NUMBER = 63 * 65536 + 127 * 256 + 127  # that a vector's numbers of three bytes become
LEAST_BYTES = 63 * 65536 - 128 * 256 - 128  # whose two lower bytes are as low as bytes can be


@pytest.mark.parametrize("int8", [name for name in pk.int8_sets() if name != "baseline"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8, 12, 16])
@pytest.mark.parametrize("number", [LARGEST_NUMBER, -LARGEST_NUMBER, LEAST_BYTES])
def test_the_largest_weights_with_the_largest_vectors_do_not_leave_the_whole_numbers(
    int8: str, bits: int, tokens: int, number: int
) -> None:
    words = np.full((40, 64 * bits // 32), 0xFFFFFFFF, np.uint32)
    ones = np.ones((40, 1), np.float32)
    matrix = pk.Matrix.packed(words, ones, 0 * ones, bits=bits, group=64)
    whole = pk.Kernels(2)
    whole.whole_numbers(int8)
    x = np.full((tokens, 64), number, np.float32)
    x[:, ::32] = LARGEST_NUMBER  # by which the others are scaled
    found = whole.product(matrix, x)
    np.testing.assert_allclose(found, (2.0 * LARGEST_NUMBER + 62.0 * number) * (2**bits - 1), rtol=1e-6)


@int8_sets
@pytest.mark.parametrize("format", [2, 3, 4, 5, 6, 8, "mxfp4", "nvfp4"])
@pytest.mark.parametrize("tokens", [1, 4, 16])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_weights_with_the_largest_int8_are_added_up_exactly(
    int8: str, format: int | str, tokens: int, sign: int
) -> None:
    if isinstance(format, str):
        scale, size, largest = {"mxfp4": (127, 32, 6), "nvfp4": (0x38, 16, 6)}[
            format
        ]  # 1.0 as each stores it
        words = np.full((40, 8), 0x77777777, np.uint32)
        matrix = pk.Matrix.float4(words, np.full((40, 64 // size), scale, np.uint8), format=format)
    else:
        words, ones = np.full((40, 64 * format // 32), 0xFFFFFFFF, np.uint32), np.ones((40, 1), np.float32)
        matrix, largest = pk.Matrix.packed(words, ones, 0 * ones, bits=format, group=64), 2**format - 1
    rounding = pk.Kernels(2)
    rounding.round_activations(int8)
    found = rounding.product(matrix, np.full((tokens, 64), sign * 3.0, np.float32))
    np.testing.assert_allclose(found, sign * 3.0 * 64 * largest, rtol=1e-5)


@int8_sets
def test_int8_of_extreme_vectors_is_defined(int8: str) -> None:
    matrix, rounding = packed(), pk.Kernels(1)
    rounding.round_activations(int8)
    x = np.zeros((3, 64), np.float32)
    x[1, 3], x[2, 40] = np.nan, 1e-42
    found = rounding.product(matrix, x)
    assert np.isnan(found[1]).all()
    assert np.abs(found[[0, 2]]).max() < 1e-30


@instruction_sets
def test_vectors_that_are_not_finite_give_nothing_finite_for_themselves_alone(name: str) -> None:
    matrix = packed()
    x = normal(3, 64)
    x[1, 3] = np.inf
    for tokens in (x, x[1:2]):
        finite = np.isfinite(kernels(name).product(matrix, tokens)).all(1)
        assert (finite == np.isfinite(tokens).all(1)).all()


def test_int8_of_dense_weights_stays_exact() -> None:
    rounding, exact = pk.Kernels(1), kernels(pk.instruction_sets()[0])
    rounding.round_activations()
    matrix, x = pk.Matrix.dense(normal(30, 70)), normal(4, 70)
    assert (rounding.product(matrix, x) == exact.product(matrix, x)).all()


@pytest.mark.parametrize("type", TYPES)
def test_each_number_of_16_bits_is_refused_exactly_where_it_is_not_finite(type: mx.Dtype) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = np.stack([np.zeros_like(bits), bits], 1) if type == mx.float32 else bits[:, None]
    numbers = bits.view(np.float32 if type == mx.float32 else np.float16 if type == mx.float16 else np.uint16)
    finite = np.isfinite(np.array(mx.array(bits).view(type).astype(mx.float32)))[:, 0]
    pk.Matrix.dense(numbers[finite])
    for number in numbers[~finite]:
        with pytest.raises(ValueError, match="not finite"):
            pk.Matrix.dense(number[None])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
def test_rows_that_fill_a_block_are_zeros_whatever_was_in_memory(rows: int) -> None:
    for _ in range(20):
        used = [np.full(4096, 0xFF, np.uint8) for _ in range(64)]
        del used
        matrix = pk.Matrix.dense(np.ones((rows, 40), np.float32), addend=np.ones(rows, np.float32))
        assert matrix.weights.transpose(0, 2, 1).reshape(-1, 40)[rows:].sum() == 0
        assert matrix.weights.sum() == rows * 40
        assert matrix.addend[rows:].sum() == 0


@instruction_sets
@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_every_scale_of_fp4_has_its_value(name: str, format: str) -> None:
    finite = [each for each in range(256) if each != 255 and (format == "mxfp4" or each != 127)]
    scales = np.array(finite, np.uint8)[:, None]
    words = np.full((len(finite), {"mxfp4": 4, "nvfp4": 2}[format]), 0x22222222, np.uint32)  # ones
    matrix = pk.Matrix.float4(words, scales, format=format)
    first = np.zeros((1, matrix.columns), np.float32)
    first[0, 0] = 1
    for tokens in (1, 4, 40):
        found = kernels(name).product(matrix, first.repeat(tokens, 0))
        assert (found == fp4_numbers(words, scales, format)[:, 0]).all()


@instruction_sets
@given(
    type=st.sampled_from(TYPES),
    rows=st.integers(1, 70),
    columns=st.integers(1, 700),
    tokens=st.sampled_from([1, 2, 4, 7, 16, 20, 33, 40]),
)
def test_products_with_dense_weights_are_those_with_their_numbers(
    name: str, type: mx.Dtype, rows: int, columns: int, tokens: int
) -> None:
    weights = mx.array(normal(rows, columns)).astype(type)
    x = normal(tokens, columns, seed=1)
    exact = np.array(weights.astype(mx.float32), np.float64).T
    found = kernels(name).product(pk.Matrix.dense(stored(weights)), x)
    # What a sum is wrong by goes with its summands, which may cancel each other out.
    assert (np.abs(found - x.astype(np.float64) @ exact) <= 1e-6 * (np.abs(x) @ np.abs(exact))).all()


@instruction_sets
def test_small_numbers_of_float16_keep_their_value(name: str) -> None:
    weights = np.array([[6e-8, 3e-5, -6e-8, 65504, -1.5, 0]], np.float16)
    for column in range(6):
        one = np.zeros((1, 6), np.float32)
        one[0, column] = 1
        assert kernels(name).product(pk.Matrix.dense(weights), one)[0, 0] == np.float32(weights[0, column])


@instruction_sets
@pytest.mark.parametrize("size", [1, 7, 16, 576, 577])
def test_norms_are_those_of_mlx(name: str, size: int) -> None:
    x, weight, bias = normal(3, size), normal(size, seed=1), normal(size, seed=2)
    expected = mx.fast.rms_norm(mx.array(x), mx.array(weight), 1e-5)
    assert_near(kernels(name).rms_norm(x, weight, 1e-5), np.array(expected))
    expected = mx.fast.layer_norm(mx.array(x), mx.array(weight), mx.array(bias), 1e-5)
    assert_near(kernels(name).layer_norm(x, weight, bias, 1e-5), np.array(expected))


@instruction_sets
@pytest.mark.parametrize(
    ("activation", "theirs"),
    [("silu", nn.silu), ("gelu_tanh", nn.gelu_approx), ("gelu", nn.gelu), ("swiglu_oai", None)],
)
def test_gated_activations_are_those_of_mlx(name: str, activation: str, theirs: Any) -> None:
    gate = np.concatenate([np.linspace(-100, 100, 999, dtype=np.float32), normal(50) * 3])
    up = normal(gate.size, seed=1)
    if theirs is None:
        expected = np.array(swiglu_oai(mx.array(gate), mx.array(up)))
    else:
        expected = np.array(theirs(mx.array(gate)) * mx.array(up))
    assert_near(kernels(name).gated(activation, gate, up), expected, 1e-6)


def attended(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    start: int,
    window: int,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """By definition, in float64: of [count, heads, dim] over [kv_heads, tokens, dim]."""
    count, heads, dim = queries.shape
    out = np.zeros(queries.shape)
    for token in range(count):
        first = max(0, start + token + 1 - window) if window else 0
        seen = slice(first, start + token + 1)
        for head in range(heads):
            own = head * keys.shape[0] // heads
            scores = keys[own, seen].astype(np.float64) @ queries[token, head] * dim**-0.5
            extra = [] if sinks is None else [sinks[head]]
            powers = np.exp(np.append(scores, extra) - np.append(scores, extra).max())
            out[token, head] = powers[: scores.size] @ values[own, seen] / powers.sum()
    return out


@instruction_sets
@given(
    starts=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    count=st.sampled_from([1, 2, 5, 40]),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 8]),
    dim=st.sampled_from([8, 16, 24, 64, 80]),
    window=st.sampled_from([0, 1, 30, 100]),
    with_sinks=st.booleans(),
)
def test_attention_is_what_its_definition_says(
    name: str,
    starts: list[int],
    count: int,
    kv_heads: int,
    group: int,
    dim: int,
    window: int,
    with_sinks: bool,
) -> None:
    heads, slots = kv_heads * group, len(starts)
    queries = normal(slots, count, heads, dim)
    keys, values = normal(slots, kv_heads, 256, dim, seed=1), normal(slots, kv_heads, 256, dim, seed=2)
    sinks = normal(heads, seed=3) if with_sinks else None
    found = kernels(name).attention(
        queries, pk.KV(keys, values), np.array(starts), scale=dim**-0.5, window=window, sinks=sinks
    )
    for slot, start in enumerate(starts):
        expected = attended(queries[slot], keys[slot], values[slot], start, window, sinks)
        assert_near(found[slot], expected)


@instruction_sets
@given(
    starts=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    count=st.sampled_from([1, 2, 5, 40]),
    group=st.sampled_from([1, 3, 8]),
    dim=st.sampled_from([8, 64, 80]),
    shared=st.sampled_from([1, 64, 100]),
)
def test_sequences_that_share_their_first_positions_read_them_where_they_lie(
    name: str, starts: list[int], count: int, group: int, dim: int, shared: int
) -> None:
    kv_heads, slots = 2, len(starts)
    queries = normal(slots, count, kv_heads * group, dim)
    keys, values = normal(slots, kv_heads, 300, dim, seed=1), normal(slots, kv_heads, 300, dim, seed=2)
    keys[:, :, :shared], values[:, :, :shared] = keys[:1, :, :shared], values[:1, :, :shared]
    own = keys[:, :, shared:].copy(), values[:, :, shared:].copy()
    # Behind what is shared lies what the prompt's own cache has there.
    both = keys[:1, :, :shared], values[:1, :, :shared]
    found = kernels(name).attention(
        queries, pk.KV(*own, -shared, both), np.array([shared + start for start in starts]), scale=dim**-0.5
    )
    for slot, start in enumerate(starts):
        expected = attended(queries[slot], keys[slot], values[slot], shared + start, 0, None)
        assert_near(found[slot], expected)


def test_what_sequences_share_has_their_shape() -> None:
    keys = normal(2, 2, 8, 16)
    for wrong in (normal(1, 3, 4, 16), normal(2, 2, 4, 16), normal(1, 2, 4, 8)):
        with pytest.raises(pk.KernelError, match="share"):
            pk.KV(keys, keys.copy(), 0, (wrong, wrong)).layout()


@instruction_sets
@given(
    starts=st.lists(st.integers(0, 200), min_size=1, max_size=3),
    count=st.sampled_from([1, 3, 40]),
    group=st.sampled_from([1, 3]),
    dim=st.sampled_from([32, 64, 96]),
    bits=st.sampled_from([4, 8]),
    window=st.sampled_from([0, 30]),
)
def test_attention_reads_packed_keys_and_values_as_the_numbers_they_stand_for(
    name: str, starts: list[int], count: int, group: int, dim: int, bits: int, window: int
) -> None:
    kv_heads, slots = 2, len(starts)
    queries = normal(slots, count, kv_heads * group, dim)
    parts, plain = [], []
    for seed in (1, 2):
        packed_parts = mx.quantize(mx.array(normal(slots, kv_heads, 256, dim, seed=seed)), 32, bits)
        parts += [np.array(part) for part in packed_parts]
        plain.append(np.array(mx.dequantize(*packed_parts, 32, bits)))
    kv = pk.PackedKV(tuple(parts), bits, 32)
    found = kernels(name).attention(queries, kv, np.array(starts), scale=dim**-0.5, window=window)
    for slot, start in enumerate(starts):
        expected = attended(queries[slot], plain[0][slot], plain[1][slot], start, window, None)
        assert_near(found[slot], expected)


def stacked(
    bits: int | str | None, count: int, rows: int, columns: int, seed: int
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Matrices of experts with biases; their numbers, and the biases."""
    weights, addends = mx.array(normal(count, rows, columns, seed=seed)), normal(count, rows, seed=seed + 1)
    if bits is None:
        stack = pk.Stack.of(
            count, lambda index: pk.Matrix.dense(np.array(weights[index]), addend=addends[index])
        )
        return stack, np.array(weights), addends
    if isinstance(bits, str):
        words, scales = mx.quantize(weights, mode=bits)
        stack = pk.Stack.of(
            count,
            lambda index: pk.Matrix.float4(
                np.array(words[index]), np.array(scales[index]), format=bits, addend=addends[index]
            ),
        )
        numbers = mx.dequantize(words, scales, mode=bits).astype(mx.float32)
        return stack, np.array(numbers), addends
    words, scales, biases = mx.quantize(weights, 32, bits)
    stack = pk.Stack.of(
        count,
        lambda index: pk.Matrix.packed(
            *(np.array(part[index]) for part in (words, scales, biases)),
            bits=bits,
            group=32,
            addend=addends[index],
        ),
    )
    return stack, np.array(mx.dequantize(words, scales, biases, 32, bits)), addends


@instruction_sets
@given(
    bits=st.sampled_from([None, 3, 4, 8, "mxfp4", "nvfp4"]),
    up_bits=st.sampled_from([None, 4, "mxfp4"]),
    count=st.integers(1, 9),
    chosen=st.integers(1, 4),
    inner=st.sampled_from([32, 64, 96]),
    tokens=st.sampled_from([1, 2, 7, 30, 150]),
    normalized=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_mixture_is_what_its_definition_says(
    name: str,
    bits: int | str | None,
    up_bits: int | str | None,
    count: int,
    chosen: int,
    inner: int,
    tokens: int,
    normalized: bool,
    seed: int,
) -> None:
    chosen, hidden = min(chosen, count), 64
    gate, gates, gate_biases = stacked(bits, count, inner, hidden, seed)
    up, ups, up_biases = stacked(up_bits, count, inner, hidden, seed + 2)
    down, downs, down_biases = stacked(bits, count, hidden, inner, seed + 4)
    router = normal(count, hidden, seed=seed + 6) * 0.1
    experts = pk.Experts(
        router=pk.Matrix.dense(router), gate=gate, up=up, down=down, chosen=chosen, normalized=normalized
    )
    x = normal(tokens, hidden, seed=seed + 7)
    scores = x.astype(np.float64) @ router.T
    order = np.argsort(-scores, axis=-1)[:, :chosen].astype(np.int32)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    each = np.zeros((tokens, chosen, hidden))
    weights = np.take_along_axis(powers, order, -1)
    for token in range(tokens):
        for place, expert in enumerate(order[token]):
            left = gates[expert].astype(np.float64) @ x[token] + gate_biases[expert]
            right = ups[expert].astype(np.float64) @ x[token] + up_biases[expert]
            each[token, place] = downs[expert] @ (left / (1 + np.exp(-left)) * right) + down_biases[expert]
    weights = weights / (weights if normalized else powers).sum(-1, keepdims=True)
    assert_near(kernels(name).mixture(experts, "silu", x), (each * weights[..., None]).sum(1), 1e-5)
    assert_near(kernels(name).mixture(experts, "silu", x, order), each, 1e-5)


@int8_sets
@pytest.mark.parametrize("bits", [3, 4, 8, "mxfp4", "nvfp4"])
@pytest.mark.parametrize("tokens", [1, 40])
def test_experts_with_int8_compute_what_their_matrices_do_with_int8(
    int8: str, bits: int | str, tokens: int
) -> None:
    count, hidden, inner = 3, 64, 96
    parts = {
        "gate": stacked(bits, count, inner, hidden, 1)[0],
        "up": stacked(bits, count, inner, hidden, 3)[0],
        "down": stacked(bits, count, hidden, inner, 5)[0],
    }
    rounding = pk.Kernels(2)
    rounding.round_activations(int8)
    x, chosen = normal(tokens, hidden, seed=7), np.arange(tokens, dtype=np.int32)[:, None] % count
    found = rounding.mixture(pk.Experts(router=None, **parts, chosen=1), "silu", x, chosen)
    exact = kernels(pk.instruction_sets()[0]).mixture(
        pk.Experts(router=None, **parts, chosen=1), "silu", x, chosen
    )
    assert np.abs(found - exact).max() > 1e-5 * np.abs(exact).max()
    for expert in range(count):
        mine = chosen[:, 0] == expert
        if not mine.any():
            continue
        one = {name: nth_of(stack, expert) for name, stack in parts.items()}
        inside = rounding.gated(
            "silu", rounding.product(one["gate"], x[mine]), rounding.product(one["up"], x[mine])
        )
        assert_near(found[mine, 0], rounding.product(one["down"], inside), 1e-5)


def nth_of(stack: pk.Stack, index: int) -> pk.Matrix:
    arrays = {name: getattr(stack.matrix, name) for name in ("weights", "scales", "biases", "addend")}
    return replace(
        stack.matrix, **{name: None if array is None else array[index] for name, array in arrays.items()}
    )


def test_an_expert_that_is_not_there_is_refused() -> None:
    parts = {name: stacked(None, 3, 32, 32, seed)[0] for seed, name in enumerate(("gate", "up", "down"))}
    experts = pk.Experts(router=None, **parts, chosen=1)
    best = kernels(pk.instruction_sets()[0])
    for wrong in (3, -1):
        with pytest.raises(pk.KernelError, match="no such expert"):
            best.mixture(experts, "silu", normal(1, 32), np.array([[wrong]], np.int32))
    with pytest.raises(pk.KernelError, match="without a router"):
        best.mixture(experts, "silu", normal(1, 32))


@instruction_sets
def test_a_ring_holds_the_window(name: str) -> None:
    """Position p lies at p modulo the capacity."""
    dim, total, capacity, window = 16, 150, 40, 32
    keys, values = normal(1, total, dim, seed=1), normal(1, total, dim, seed=2)
    ring = [np.zeros((1, 1, capacity, dim), np.float32) for _ in range(2)]
    for position in range(total):
        for array, source in zip(ring, (keys, values), strict=True):
            array[0, 0, position % capacity] = source[0, position]
    queries = normal(1, 3, 2, dim)
    start = total - 3
    found = kernels(name).attention(queries, pk.KV(*ring), np.array([start]), scale=dim**-0.5, window=window)
    assert_near(found[0], attended(queries[0], keys, values, start, window, None))


def test_what_one_thread_computes_many_compute_alike() -> None:
    matrix = pk.Matrix.dense(normal(300, 200))
    x = normal(9, 200, seed=1)
    best = pk.instruction_sets()[0]
    found = [kernels(best, threads).product(matrix, x) for threads in (1, 2, 5)]
    assert all((each == found[0]).all() for each in found)


def packed(**changes: Any) -> Any:
    words, scales, biases = (np.array(array) for array in mx.quantize(mx.array(normal(20, 64)), 32, 4))
    parts = {"words": words, "scales": scales, "biases": biases, "bits": 4, "group": 32} | changes
    return pk.Matrix.packed(
        parts["words"], parts["scales"], parts["biases"], bits=parts["bits"], group=parts["group"]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"scales": np.ones((20, 1), np.float32)},
        {"biases": np.ones((19, 2), np.float32)},
        {"scales": np.full((20, 2), np.nan, np.float32)},
        {"biases": np.full((20, 2), np.inf, np.float32)},
        {"scales": np.full((20, 2), 0x7F80, np.uint16), "biases": np.zeros((20, 2), np.uint16)},
        {"scales": np.ones((20, 2), np.float64)},
        {"words": np.zeros((20, 7), np.uint32)},
        {"words": np.zeros((0, 8), np.uint32)},
        {"words": np.zeros((20, 8), np.int32)},
        {"bits": 7},
        {"bits": 1},
        {"group": 16},
        {"group": 128},
    ],
)
def test_damaged_weights_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        packed(**changes)


@pytest.mark.parametrize(
    ("words", "scales", "format"),
    [
        (np.zeros((20, 8), np.uint32), np.zeros((20, 1), np.uint8), "mxfp4"),
        (np.zeros((20, 8), np.uint32), np.zeros((19, 2), np.uint8), "mxfp4"),
        (np.zeros((20, 8), np.uint32), np.zeros((20, 2), np.float32), "mxfp4"),
        (np.zeros((20, 8), np.uint32), np.full((20, 2), 255, np.uint8), "mxfp4"),
        (np.zeros((20, 7), np.uint32), np.zeros((20, 1), np.uint8), "mxfp4"),
        (np.zeros((20, 8), np.int32), np.zeros((20, 2), np.uint8), "mxfp4"),
        (np.zeros((0, 8), np.uint32), np.zeros((0, 2), np.uint8), "mxfp4"),
        (np.zeros((20, 8), np.uint32), np.zeros((20, 2), np.uint8), "nvfp4"),
        (np.zeros((20, 8), np.uint32), np.full((20, 4), 127, np.uint8), "nvfp4"),
        (np.zeros((20, 8), np.uint32), np.full((20, 4), 255, np.uint8), "nvfp4"),
    ],
)
def test_damaged_weights_of_fp4_are_refused(words: np.ndarray, scales: np.ndarray, format: str) -> None:
    with pytest.raises(ValueError):
        pk.Matrix.float4(words, scales, format=format)


@given(
    format=st.sampled_from(["affine", "mxfp4", "nvfp4", "dense"]),
    rows=st.integers(0, 20),
    words=st.integers(0, 20),
    scale_rows=st.integers(-1, 1),
    groups=st.integers(0, 8),
    type=st.sampled_from([np.float32, np.float16, np.uint16, np.uint8, np.float64]),
    bits=st.integers(0, 9),
    group=st.sampled_from([0, 16, 31, 32, 64, 100, 128]),
)
def test_weights_of_any_shape_are_refused_or_whole(
    format: str, rows: int, words: int, scale_rows: int, groups: int, type: Any, bits: int, group: int
) -> None:
    """What is taken is as large as its shape says: the library reads no further, and has no objection."""
    from pippin_kernels.binding import library

    scales = np.ones((max(rows + scale_rows, 0), groups), type)
    packed_words = np.zeros((rows, words), np.uint32)
    try:
        match format:
            case "affine":
                matrix = pk.Matrix.packed(packed_words, scales, scales, bits=bits, group=group)
            case "dense":
                matrix = pk.Matrix.dense(scales)
            case _:
                matrix = pk.Matrix.float4(packed_words, scales, format=format)
    except ValueError:
        return
    assert matrix.weights.shape[0] * 16 >= matrix.rows
    assert library().pk_check(matrix.structure()) == 0
    out = kernels(pk.instruction_sets()[0]).product(matrix, np.ones((2, matrix.columns), np.float32))
    assert out.shape == (2, matrix.rows)


def test_the_library_itself_refuses_memory_that_is_too_short() -> None:
    from pippin_kernels.binding import library

    for field in ("weight_bytes", "scale_bytes", "bias_bytes"):
        structure = packed().structure()
        setattr(structure, field, getattr(structure, field) - 1)
        assert library().pk_check(structure) == -1
    for mode in ("mxfp4", "nvfp4"):
        words, scales = (np.array(array) for array in mx.quantize(mx.array(normal(20, 64)), mode=mode))
        matrix = pk.Matrix.float4(words, scales, format=mode)
        assert library().pk_check(matrix.structure()) == 0
        changes = {
            "weight_bytes": matrix.weights.nbytes - 1,
            "scale_bytes": matrix.scales.nbytes - 1,
            "group": 64,
            "bits": 8,
            "columns": 65,
            "format": 9,
        }
        for field, value in changes.items():
            structure = matrix.structure()
            setattr(structure, field, value)
            assert library().pk_check(structure) == -1


def test_what_does_not_fit_is_refused() -> None:
    best = kernels(pk.instruction_sets()[0])
    with pytest.raises(pk.KernelError):
        best.product(packed(), normal(2, 63))
    with pytest.raises(pk.KernelError):
        best.rows(packed(), np.array([20], np.int32))
    with pytest.raises(pk.KernelError):
        best.rows(packed(), np.array([-1], np.int32))
    full = pk.KV(normal(1, 1, 8, 16), normal(1, 1, 8, 16))
    with pytest.raises(pk.KernelError):
        best.attention(normal(1, 1, 1, 16), full, np.array([8]), scale=1.0)
