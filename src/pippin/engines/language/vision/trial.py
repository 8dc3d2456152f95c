"""Whether media give with this model what mlx-vlm gives, found by trying, so that no family is answered wrongly."""

import logging
from typing import Any

import mlx.core as mx

from pippin.engines.language.vision.encoder import VisionEncoder
from pippin.engines.language.vision.media import MediaKind, Medium, Placed, PromptMedia
from pippin.engines.language.vision.model import VisionModel, on_device

log = logging.getLogger(__name__)

TOLERANCE = 0.02  # of the largest logit, as for batches
ROUGH_TOLERANCE = 0.15  # in 16 bits, where sums in another order differ visibly after dozens of layers
KINDS: dict[MediaKind, int] = {"image": 1, "video": 2, "audio": 3}
FAILURES = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError)
"""What models raise for inputs that are not theirs."""


def runs(model: VisionModel) -> bool:
    """Whether the model takes the engine's caches at all."""
    try:
        cache = model.make_cache()
        mx.eval(model(mx.array([[1, 2]]), cache), model(mx.array([[3]]), cache))
    except FAILURES as error:
        log.info("a prompt of text fails: %s", error)
        return False
    return True


def is_faithful(model: VisionModel, medium: Medium) -> bool:
    """Run a short prompt with the medium both ways: the library's, whole, and the engine's, in chunks. Notes in the
    model whether the tokens of such media see each other."""
    before, after = (1, 2, 3), (4, 5)
    tokens = (*before, *medium.tokens, *after)
    placed = Placed(medium, tuple(place + len(before) for place in medium.places))
    known = model.mutual - {medium.kind}
    try:
        expected = _by_library(model, tokens, placed)
        differences = []
        # By the types of tokens families of the library decide which ones see each other.
        for mutual in (known, known | {medium.kind}) if medium.typed else (known,):
            model.mutual = mutual
            found = _by_engine(model, tokens, PromptMedia((placed,)))
            differences.append((float(_difference(found, expected)), len(mutual), mutual))
    except FAILURES as error:
        log.info("a prompt with %s fails: %s", medium.kind, error)
        model.mutual = known
        return False
    difference, _, model.mutual = min(differences)
    if medium.kind in model.mutual and not _is_enclosed(medium):
        return False
    return difference < (TOLERANCE if expected.dtype == mx.float32 else ROUGH_TOLERANCE)


def _difference(found: mx.array, expected: mx.array) -> mx.array:
    return mx.abs(found - expected).max() / mx.maximum(mx.abs(expected).max(), 1e-6)


def _is_enclosed(medium: Medium) -> bool:
    """Tokens at both ends keep it apart from a medium beside it, which its own tokens would see, too."""
    return {0, len(medium.tokens) - 1}.isdisjoint(medium.places)


def _by_library(model: VisionModel, tokens: tuple[int, ...], placed: Placed) -> mx.array:
    inner, ids, medium = model.inner, mx.array([tokens]), placed.medium
    arrays: dict[str, Any] = {name: on_device(value) for name, value in medium.arrays.items()}
    if medium.typed:  # by this some families let the tokens of a picture see each other
        types = mx.zeros_like(ids)
        types[:, mx.array(placed.positions)] = KINDS[medium.kind]
        arrays["mm_token_type_ids"] = types
    features = inner.get_input_embeddings(
        ids, arrays.pop("pixel_values", None), mask=mx.ones_like(ids), **arrays
    )
    given = {name: value for name, value in features.to_dict().items() if value is not None}
    logits: mx.array = inner.language_model(ids, cache=model.make_cache(), **{**arrays, **given}).logits
    return logits[0, -1]


def _by_engine(model: VisionModel, tokens: tuple[int, ...], media: PromptMedia) -> mx.array:
    inputs, cache = VisionEncoder(model, 0).open(tokens, media), model.make_cache()
    while (medium := inputs.missing(0, len(tokens))) is not None:
        inputs.encode(medium, wait=True)
    start, middle, end = 0, len(tokens) // 2, len(tokens) - 1
    while start < end:
        stop = inputs.chunk_end(middle if start < middle else end, start)
        chunk = tokens[start:stop]
        model(mx.array([chunk]), cache, inputs=inputs.inputs(chunk, start))
        start = stop
    return model(mx.array([tokens[-1:]]), cache, shift=inputs.shift)[0, -1]
