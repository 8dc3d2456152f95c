"""The small model that scores prompts."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.layout import CacheLayout, probe_prompt
from pippin.engines.language.kv_cache.probe import Batching
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.drafting import load_draft
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.weights import KernelUse, weight_bytes
from pippin.engines.language.specprefill.importance import DraftScorer
from pippin.engines.language.specprefill.policy import SpecPrefill
from pippin.engines.language.specprefill.positions import require_positions
from pippin.engines.language.specprefill.selection import Share
from pippin.engines.language.vision.model import VisionModel


def open_scoring_draft(asked: Asked) -> tuple[nn.Module, CacheLayout] | None:
    """The model that scores prompts; None without `specprefill`."""
    options, threads = asked.options, asked.kernel_threads
    if not options.specprefill:
        return None
    if isinstance(asked.model, VisionModel):
        message = "specprefill cannot be used with this model: it takes media. Start without it."
        raise ServerError("load_failed", message, "specprefill")
    name = options.specprefill_draft_model or options.draft_model_path
    if name is None:
        message = (
            "specprefill needs a small model that scores prompts: name one with specprefill_draft_model."
        )
        raise ServerError("load_failed", message, "specprefill_draft_model")
    # Whole layers do not show what they attend to.
    use = None if threads is None else KernelUse(threads=threads, whole_layers=False)
    draft = load_draft(Path(name).expanduser(), "specprefill_draft_model", asked, use)
    return draft, CacheLayout.learn(draft, probe_prompt(draft, 2))


def open_specprefill(asked: Asked, batching: Batching, draft: tuple[nn.Module, CacheLayout]) -> SpecPrefill:
    """Raises `ServerError("load_failed")` where prompts cannot have gaps."""
    model, options = asked.model, asked.options
    require_positions(model, batching.layout, batching.vocabulary)
    module, layout = draft
    cost = min(weight_bytes(module) / max(weight_bytes(model), 1), 1.0)
    share = Share(options.specprefill_keep_pct, options.specprefill_backbone_pct)
    head = Head(module, batching.vocabulary)

    def run(tokens: mx.array, cache: PromptCache) -> mx.array:
        last = [tokens.shape[1] - 1]
        with head.only(last):
            return head.last(module(tokens, cache=cache), last)

    return SpecPrefill(DraftScorer(run, layout, cost), share, options.specprefill_threshold)
