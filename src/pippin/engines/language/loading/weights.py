"""The model with its weights, in the way in which it runs."""

import logging

import mlx.nn as nn

from pippin.core.errors import ServerError
from pippin.engines.language.loading.asked import AskedWeights
from pippin.engines.language.loading.ways import Way, way_of
from pippin.engines.language.model.experts import fewer_experts, memory_for_experts
from pippin.engines.language.model.lora import is_low_rank
from pippin.engines.language.model.weights import KernelUse, Reading, load_weights
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.vision.media import TEXT_ONLY

log = logging.getLogger(__name__)


def load_model(asked: AskedWeights, preparer: LanguagePreparer) -> Way:
    """Read the weights and find out how the model runs. Raises `ServerError("load_failed")`."""
    info, options, plan = asked.info, asked.options, asked.plan
    experts = memory_for_experts(info, options.expert_cache_gb, plan.memory_limit)
    changed = fewer_experts(info, options.moe_top_k)
    reading = Reading(trust_remote_code=options.trust_remote_code, experts=experts, changed=changed)
    way = way_of(_read(asked, reading, use=_kernel_use(asked)), preparer)
    if experts is not None:
        log.info("the model reads its experts from the disk; %.3g GB of them stay", experts.kept / 1e9)
    if way is not None:
        return way
    if experts is not None:
        message = f"The model {info.id!r} cannot be loaded: mlx-vlm's model of it does not run."
        raise ServerError("load_failed", message)
    log.warning("the model is served for text only: mlx-vlm's model does not run")
    as_text = Reading(trust_remote_code=options.trust_remote_code, text_only=True)
    return Way(_read(asked, as_text), TEXT_ONLY)


def _read(asked: AskedWeights, reading: Reading, use: KernelUse | None = None) -> nn.Module:
    model, _ = load_weights(asked.info, asked.plan, asked.progress, reading, use=use)
    return model


def _kernel_use(asked: AskedWeights) -> KernelUse | None:
    # Adapters that are not LoRA become part of mlx-lm's own layers.
    adapter = asked.options.adapter_path
    return KernelUse(threads=asked.kernel_threads) if adapter is None or is_low_rank(adapter) else None
