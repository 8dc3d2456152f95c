"""Opens the engine of a model that mlx-vlm's loops run."""

import logging
import queue
from dataclasses import replace

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.blocking import BlockingEngine
from pippin.engines.device import DevicePlan, configure, decide, find_facts, weights_too_large
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.library.diffusion import COPIES, DiffusionModel
from pippin.engines.language.library.engine import LibraryEngine, Sizes, Writer
from pippin.engines.language.model.weights import Reading, load_weights, weight_bytes
from pippin.engines.language.prompt.loops import AUTOREGRESSIVE, Loop
from pippin.engines.language.prompt.preparer import LanguagePreparer

log = logging.getLogger(__name__)


def open_diffusion_engine(
    spec: WorkerSpec, preparer: LanguagePreparer, loop: Loop, progress: LoadProgress
) -> LibraryEngine:
    """Raises `ServerError("load_failed")`."""
    options = convert(spec.options, ModelOptions)
    loop.refuse_options(options)
    plan = decide(find_facts(), options, spec.memory_bytes)
    found: queue.SimpleQueue[Sizes] = queue.SimpleQueue()

    def load() -> Writer:
        # Arrays that are not computed yet belong to the thread that made them, and all is computed on this one.
        configure(plan)
        reading = Reading(trust_remote_code=options.trust_remote_code, diffusion=True)
        module, _ = load_weights(spec.info, plan, progress, reading)
        weights = weight_bytes(module)
        model = DiffusionModel(module)
        preparer.loaded(preparer.find_prompt_processor(model.logits))
        left = _left(plan, weights, spec.info.id)
        token = COPIES * model.token_bytes()
        found.put(Sizes(weights=weights, token=token, scores=model.score_bytes(), memory=left))
        return model

    calls = BlockingEngine(load)
    log.info("the model is a diffusion language model: it answers one request at a time, in mlx-vlm's loop")
    return _opened(calls, preparer, options, found.get(), loop)


def open_autoregressive_engine(
    model: AutoregressiveModel, preparer: LanguagePreparer, options: ModelOptions, plan: DevicePlan
) -> LibraryEngine:
    """The engine of a model that was loaded on this thread. Raises `ServerError("load_failed")`."""
    AUTOREGRESSIVE.refuse_options(options)
    log.warning("the model answers one request at a time, by mlx-vlm's own generate, and caches no prompts")
    loop = replace(AUTOREGRESSIVE, needs_media=not model.computes_text())
    weights = weight_bytes(model.inner)
    left = _left(plan, weights, preparer.info.id)
    sizes = Sizes(weights=weights, token=model.token_bytes(), memory=left)
    model.settle()
    return _opened(BlockingEngine(lambda: model), preparer, options, sizes, loop)


def _left(plan: DevicePlan, weights: int, name: str) -> int:
    """The bytes that the weights leave. Raises `ServerError("load_failed")` if there are none."""
    if weights >= plan.memory_limit:
        raise weights_too_large(weights, plan.memory_limit, name)
    return plan.memory_limit - weights


def _opened(
    calls: BlockingEngine[Writer], preparer: LanguagePreparer, options: ModelOptions, sizes: Sizes, loop: Loop
) -> LibraryEngine:
    for name in loop.ignored(options):
        log.warning("the default %s changes nothing, for the model's loop does not follow it", name)
    return LibraryEngine(calls, preparer.tokenizer, options, sizes, loop)
