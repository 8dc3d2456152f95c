"""Bytes that the context of a model takes, told from its config.json alone: `python -m ...kv_cache.estimate`.

The model is built without weights (MLX computes nothing that isn't asked for) and shown one token, which gives its
caches the shapes that they will have; their kinds then tell bytes as they tell them to the scheduler. Reads a
`Question` as JSON from standard input and writes an `Answer`.
"""

import sys
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pippin.core.decoding import from_message
from pippin.engines.file_limit import own_file_limit
from pippin.engines.language.configuration import spelled_out

CAPACITY_STEP = 256  # tokens by which slots grow


class Question(Struct, frozen=True, kw_only=True):
    config: dict[str, Any]  # of the model, as config.json has it
    dtype: Literal["float32", "float16", "bfloat16"]  # that the model runs in
    context: int  # tokens of one client
    clients: int
    memory: int  # bytes for all of them
    window: int  # tokens that the model can attend to
    key_bits: int | None = None  # both or none
    value_bits: int | None = None
    kv_group_size: int = 64


class Answer(Struct, frozen=True, kw_only=True):
    context_bytes: int  # of one client
    longest: int  # tokens that all clients can have at once; 0 if not even the shortest fits


def answer(question: Question) -> Answer:
    """Raises `ValueError` and others for a model that mlx-lm cannot build."""
    import mlx.core as mx
    from mlx_lm.utils import _get_classes

    from pippin.engines.language.kv_cache.layout import CacheLayout, find_kinds, mlx_lm_twin, new_prompt_cache

    kind, arguments = _get_classes(question.config)
    model = kind(arguments.from_dict(spelled_out(question.config)))
    model.set_dtype(getattr(mx, question.dtype))
    # A mended model makes the twins of some itself.
    cache = [each if type(each) in find_kinds() else mlx_lm_twin(each) for each in new_prompt_cache(model)]
    model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    layout = CacheLayout.learn(model, cache)
    if question.key_bits is not None and question.value_bits is not None:
        layout = layout.quantized(question.key_bits, question.value_bits, question.kv_group_size)
    steps = question.window // CAPACITY_STEP
    low, high = 0, steps  # in capacity steps: `low` fits, what is above `high` does not
    while low < high:
        middle = (low + high + 1) // 2
        if question.clients * layout.slot_bytes(middle * CAPACITY_STEP) <= question.memory:
            low = middle
        else:
            high = middle - 1
    return Answer(
        context_bytes=layout.slot_bytes(-(-question.context // CAPACITY_STEP) * CAPACITY_STEP),
        longest=question.window if low == steps else low * CAPACITY_STEP,
    )


if __name__ == "__main__":
    with own_file_limit():
        found = answer(from_message(sys.stdin.buffer.read(), Question))
    sys.stdout.buffer.write(msgspec.json.encode(found))
