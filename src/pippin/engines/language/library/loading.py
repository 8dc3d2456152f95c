"""Opens the engine of a model that mlx-vlm's `generate` runs."""

import logging

from pippin.config.options.model import ModelOptions
from pippin.engines.blocking import BlockingEngine
from pippin.engines.device import DevicePlan, weights_too_large
from pippin.engines.language.library import fields
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.library.engine import LibraryEngine, Sizes
from pippin.engines.language.model.weights import weight_bytes
from pippin.engines.language.prompt.preparer import LanguagePreparer

log = logging.getLogger(__name__)


def open_autoregressive_engine(
    model: AutoregressiveModel, preparer: LanguagePreparer, options: ModelOptions, plan: DevicePlan
) -> LibraryEngine:
    """The engine of a model that was loaded on this thread. Raises `ServerError("load_failed")`."""
    fields.refuse_options(options)
    log.warning("the model answers one request at a time, by mlx-vlm's own generate, and caches no prompts")
    needs_media = not model.computes_text()
    weights = weight_bytes(model.inner)
    if weights >= plan.memory_limit:
        raise weights_too_large(weights, plan.memory_limit, preparer.info.id)
    sizes = Sizes(weights=weights, token=model.token_bytes(), memory=plan.memory_limit - weights)
    model.settle()
    for name in fields.ignored(options):
        log.warning("the default %s changes nothing, for the model's loop does not follow it", name)
    calls = BlockingEngine(lambda: model)
    return LibraryEngine(calls, preparer.tokenizer, options, sizes, needs_media=needs_media)
