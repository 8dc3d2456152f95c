"""The model with its weights, in the way in which it runs."""

import logging
from functools import partial

import mlx.nn as nn
from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError, is_of_device
from pippin.core.models import ModelInfo
from pippin.engines.base import LoadProgress
from pippin.engines.device import DevicePlan
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.model.adapter_files import is_low_rank
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.upstream.rotary import SERVED
from pippin.engines.language.vision.joint import find_tokens
from pippin.engines.language.vision.media import TEXT_ONLY, TextOnly
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.language.vision.trial import is_faithful, runs

log = logging.getLogger(__name__)


class Way(Struct, frozen=True):
    """How a model runs, and how its media become part of prompts."""

    model: nn.Module  # in the engine's batches
    media: TextOnly
    alone: AutoregressiveModel | None = None  # by mlx-vlm's own loop instead


def way_of(model: nn.Module, preparer: LanguagePreparer) -> Way | None:
    """How a loaded model runs; None if it does not run at all."""
    if not isinstance(model, VisionModel):
        return Way(model, TEXT_ONLY)
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
    """Whether sequences of text run together. Molmo Point's do not run without its own loop."""
    try:
        return choose_batching(model, ModelOptions()).shape is not None
    except ServerError as error:
        if error.__cause__ is not None and is_of_device(error.__cause__):
            raise
        return False


def load_model(
    info: ModelInfo, plan: DevicePlan, preparer: LanguagePreparer, progress: LoadProgress, kernel_threads: int
) -> Way:
    """Read the weights and find out how the model runs. Raises `ServerError("load_failed")`."""
    read, options = partial(load_weights, info, plan, progress), preparer.options
    changed = {SERVED: preparer.context_window}
    reading = Reading(trust_remote_code=options.trust_remote_code, changed=changed)
    folders = [*options.adapters.values(), *filter(None, [options.adapter_path])]
    if others := [folder for folder in folders if not is_low_rank(folder)]:
        log.info("the kernels for CPUs are not used: they add pairs to layers alone, unlike %s", others)
    model, _ = read(reading, kernel_threads=None if others else kernel_threads)
    way = way_of(model, preparer)
    if way is not None:
        return way
    log.warning("the model is served for text only: mlx-vlm's model does not run")
    model, _ = read(Reading(trust_remote_code=options.trust_remote_code, text_only=True))
    return Way(model, TEXT_ONLY)
