"""Tests when a model is loaded whether media give the same logits in the engine as in mlx-vlm.

A modality that does not is refused, so that no family of models answers wrongly.
"""

import logging
from collections.abc import Callable

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from pippin.core.errors import ServerError
from pippin.engines.device import require_sound_device
from pippin.engines.language.kv_cache.agreement import FAILURES, difference, in_float32, is_wide, tolerance
from pippin.engines.language.vision.encoder import VisionEncoder
from pippin.engines.language.vision.media import Medium, Modality, PlacedMedium, PromptMedia, WholePrompt
from pippin.engines.language.vision.model import VisionModel, embedded

log = logging.getLogger(__name__)

TOKEN_TYPES: dict[Modality, int] = {"image": 1, "video": 2, "audio": 3}
"""The numbers of modalities in `mm_token_type_ids` of transformers."""


TEXTS = (((1, 2, 3), (4, 5)), ((7, 9, 8), (10, 6)))
"""Tokens before and after the medium of a trial, and others before it is refused."""


def runs(model: VisionModel) -> bool:
    """Whether the model computes two chunks of text with the engine's caches."""
    try:
        cache = model.make_cache()
        mx.eval(model(mx.array([[1, 2]]), cache), model(mx.array([[3]]), cache))
    except FAILURES as error:
        require_sound_device(error)
        log.info("a prompt of text fails: %s", error)
        return False
    return True


def is_faithful(model: VisionModel, medium: Medium) -> bool:
    """Whether a short prompt with the medium gives the same logits in chunks, by the engine, as at once, by mlx-vlm.

    Adds the modality to `model.bidirectional` if attention among the medium's tokens turns out to be bidirectional.
    """
    return any(_is_faithful_between(model, medium, *text) for text in TEXTS)


def _is_faithful_between(
    model: VisionModel, medium: Medium, before: tuple[int, ...], after: tuple[int, ...]
) -> bool:
    tokens = (*before, *medium.tokens, *after)
    placed = PlacedMedium(medium, tuple(index + len(before) for index in medium.placeholders))
    known = model.bidirectional - {medium.modality}
    try:
        expected, differences = _differences(model, medium, tokens, placed, known)
    except (*FAILURES, ServerError) as error:
        require_sound_device(error)
        log.info("a prompt with %s fails: %s", medium.modality, error)
        model.bidirectional = known
        return False
    nearest = min(differences)
    # Where both kinds of attention give the same, as in families that have one kind only, rounding must not choose.
    found, _, model.bidirectional = differences[0] if differences[0][0] < 10 * nearest[0] else nearest
    # Without text tokens around the medium, its tokens would attend to those of a medium beside it.
    enclosed = {0, len(medium.tokens) - 1}.isdisjoint(medium.placeholders)
    if medium.modality in model.bidirectional and not enclosed:
        return False
    log.info("a prompt with %s agrees within %.4f", medium.modality, found)
    return found < tolerance(expected)


def _differences(
    model: VisionModel,
    medium: Medium,
    tokens: tuple[int, ...],
    placed: PlacedMedium,
    known: frozenset[Modality],
) -> tuple[mx.array, list[tuple[float, int, frozenset[Modality]]]]:
    """The library's logits, and how far off the engine's are with each set of modalities that may be bidirectional."""
    found = []
    with in_float32(model):
        expected = logits_by_library(model, tokens, placed)
        # Others have no bidirectional attention among a medium's tokens.
        may_see_whole = medium.has_token_types or hasattr(model.inner.language_model, "sees_pictures_whole")
        for modalities in (known, known | {medium.modality}) if may_see_whole else (known,):
            model.bidirectional = modalities
            logits = logits_by_engine(model, tokens, PromptMedia((placed,)))
            found.append((difference(logits, expected), len(modalities), modalities))
    compile_pass(model, tokens, PromptMedia((placed,)))
    return expected, found


def compile_pass(model: VisionModel, tokens: tuple[int, ...], media: PromptMedia) -> None:
    """Compute a prompt, tried in float32, in the types that the model serves in: a GPU compiles for each of them, for
    which the first client's picture would wait."""
    if not is_wide(*(array for _, array in tree_flatten(model.parameters()))):
        mx.eval(logits_by_engine(model, tokens, media))


def logits_by_library(model: VisionModel, tokens: tuple[int, ...], placed: PlacedMedium) -> mx.array:
    """The last token's logits [vocabulary] as mlx-vlm computes them, in one forward pass."""
    medium, arrays = placed.medium, dict(placed.medium.arrays)
    # Some families choose by the token types a mask that is bidirectional within a picture.
    if medium.has_token_types:
        types = np.zeros((1, len(tokens)), np.int32)
        types[:, placed.positions] = TOKEN_TYPES[medium.modality]
        arrays["mm_token_type_ids"] = types
    given = embedded(model.inner, WholePrompt(np.array([tokens], np.int32), arrays))
    logits: mx.array = model.inner.language_model(
        mx.array([tokens]), cache=model.make_cache(), **given
    ).logits
    return logits[0, -1]


def logits_by_engine(
    model: VisionModel,
    tokens: tuple[int, ...],
    media: PromptMedia,
    *,
    before: Callable[[], None] = lambda: None,
) -> mx.array:
    """The last token's logits [vocabulary] as the engine computes them, in chunks. `before` is called between the
    features and the first chunk."""
    inputs, cache = VisionEncoder(model, 0).open(tokens, media), model.make_cache()
    while (medium := inputs.missing(0, len(tokens))) is not None:
        inputs.encode(medium, wait=True)
    before()
    start, middle, end = 0, len(tokens) // 2, len(tokens) - 1
    while start < end:
        stop = inputs.chunk_end(middle if start < middle else end, start)
        chunk = tokens[start:stop]
        model(mx.array([chunk]), cache, inputs=inputs.inputs(chunk, start))
        start = stop
    return model(mx.array([tokens[-1:]]), cache, shift=inputs.positions.shift)[0, -1]
