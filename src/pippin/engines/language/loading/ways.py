"""How a model of mlx-vlm runs, found by trying when it is loaded: in the engine's batches, or by mlx-vlm's own loop."""

import logging
from dataclasses import dataclass
from functools import partial

import mlx.nn as nn

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.vision.joint import find_tokens
from pippin.engines.language.vision.media import TEXT_ONLY, TextOnly
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.language.vision.trial import is_faithful, runs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Way:
    """How a model runs, and how its media become part of prompts."""

    model: nn.Module  # in the engine's batches
    media: TextOnly
    alone: AutoregressiveModel | None = None  # by mlx-vlm's own loop instead


def way_of(model: nn.Module, preparer: LanguagePreparer) -> Way | None:
    """How a loaded model runs; None if it does not run at all."""
    return _tried(model, preparer) if isinstance(model, VisionModel) else Way(model, TEXT_ONLY)


def _tried(model: VisionModel, preparer: LanguagePreparer) -> Way | None:
    in_batches = runs(model)
    media = preparer.media.tested(partial(is_faithful, model)) if in_batches else TEXT_ONLY
    if in_batches and (media.modalities or not preparer.may_take_media):
        return Way(model, media)
    alone = AutoregressiveModel(model.inner, model.unused)
    found = preparer.find_prompt_processor(alone.logprobs)
    if found.modalities:
        # Sequences that run one at a time gain nothing by joint media, and some of their caches depend on how a prompt
        # is cut.
        if in_batches and _batches(model):
            joined = found.joined(preparer.open_renderer(found), partial(find_tokens, model, alone.logprobs))
            if joined.modalities:
                return Way(model, joined)
        return Way(model, found, alone)
    if in_batches:
        log.warning("the model is served for text only: none of its media are taken by the installed mlx-vlm")
        return Way(model, media)
    return Way(model, TEXT_ONLY, alone) if alone.computes_text() else None


def _batches(model: VisionModel) -> bool:
    """Whether sequences of text run together."""
    return choose_batching(model, ModelOptions()).shape is not None
