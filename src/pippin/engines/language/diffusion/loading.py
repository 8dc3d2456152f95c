"""Opens the engine of a diffusion language model from its folder."""

import logging
import queue

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.blocking import BlockingEngine
from pippin.engines.device import configure, decide, find_facts, weights_too_large
from pippin.engines.language.diffusion.engine import DiffusionEngine, Sizes
from pippin.engines.language.diffusion.model import DiffusionModel
from pippin.engines.language.model.weights import Reading, load_weights, weight_bytes
from pippin.engines.language.prompt.diffusion import ignored, refuse_options
from pippin.engines.language.prompt.preparer import LanguagePreparer

log = logging.getLogger(__name__)


def open_engine(spec: WorkerSpec, preparer: LanguagePreparer, progress: LoadProgress) -> DiffusionEngine:
    """Raises `ServerError("load_failed")`."""
    options = convert(spec.options, ModelOptions)
    refuse_options(options)
    plan = decide(find_facts(), options, spec.memory_bytes)
    found: queue.SimpleQueue[Sizes] = queue.SimpleQueue()

    def load() -> DiffusionModel:
        # Arrays belong to the thread that made them, and all is computed on this one.
        configure(plan)
        module, _ = load_weights(
            spec.info,
            plan,
            progress,
            Reading(trust_remote_code=options.trust_remote_code, diffusion=True),
        )
        weights = weight_bytes(module)
        model = DiffusionModel(module)
        if not preparer.takes_whole_prompts(model.logits):
            preparer.try_media(lambda _: False)
        preparer.media_known = True
        if weights >= plan.memory_limit:
            raise weights_too_large(weights, plan.memory_limit, spec.info.id)
        found.put(Sizes(weights, model.token_bytes(), model.score_bytes(), plan.memory_limit - weights))
        return model

    calls = BlockingEngine(load)
    log.info("the model is a diffusion language model: it answers one request at a time, in mlx-vlm's loop")
    assert preparer.diffusion is not None
    for name in ignored(preparer.diffusion, options):
        log.warning("the default %s changes nothing, for the model's loop does not follow it", name)
    return DiffusionEngine(calls, preparer.tokenizer, options, found.get(), preparer.renewed)
