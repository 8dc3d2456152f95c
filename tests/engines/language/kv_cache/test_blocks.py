"""Blocks that the host copies lie where they belong, and nothing else is written."""

import mlx.core as mx
import pytest

from pippin.engines.language.kv_cache.layout import copy_blocks, unpack_into


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_members_of_a_stack_are_written_one_block_after_the_other(dtype: mx.Dtype) -> None:
    blocks = [mx.random.normal((2, 3, tokens, 4)).astype(dtype) for tokens in (8, 8, 5)]
    targets = [mx.ones((1, 3, 32, 4), dtype=dtype) for _ in range(2)]
    copy_blocks([blocks], [targets])
    whole = mx.concatenate(blocks, axis=2)
    for member, target in enumerate(targets):
        assert mx.array_equal(target[0, :, :21], whole[member])
        assert mx.array_equal(target[0, :, 21:], mx.ones((3, 11, 4), dtype=dtype))


def test_a_slot_of_a_larger_array_is_written_in_place() -> None:
    slots = mx.zeros((3, 1, 8, 2))
    mx.eval(slots)
    copy_blocks([[mx.full((1, 1, 4, 2), 7.0)]], [[slots[1:2]]])
    assert slots.sum(axis=(1, 2, 3)).tolist() == [0, 56, 0]


@pytest.mark.parametrize("bits", [4, 8])
def test_words_are_unpacked_to_the_numbers_that_mlx_makes_of_them(bits: int) -> None:
    mx.random.seed(3)
    words = list(mx.quantize(mx.random.normal((2, 3, 9, 64)), group_size=32, bits=bits))
    targets = [mx.full((1, 3, 12, 64), 7.0) for _ in range(2)]
    unpack_into(targets, words, 32, bits)
    expected = mx.dequantize(*words, 32, bits)
    for place, target in enumerate(targets):
        assert mx.array_equal(target[0, :, :9], expected[place])
        assert (target[0, :, 9:] == 7).all()
