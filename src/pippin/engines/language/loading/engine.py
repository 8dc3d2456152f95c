"""Makes a ready engine of a model folder: weights, batches, caches, speculation, warm-up."""

import logging
import os
from functools import partial
from pathlib import Path

import mlx.core as mx

from pippin.config.verified import keep_agreement
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.device import MemoryShares, configure, decide, find_facts, share_memory, wire_weights
from pippin.engines.language.kv_cache.groups import CacheGroups
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.kv_cache.probe import Batching
from pippin.engines.language.library.engine import LibraryEngine
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.caching import (
    find_batching,
    limits_of,
    named_of,
    open_prefixes,
    warn_of_slow_cache,
)
from pippin.engines.language.loading.drafting import open_speculation
from pippin.engines.language.loading.weights import load_model
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.loaded import LoadedModel
from pippin.engines.language.model.lora import install
from pippin.engines.language.model.weights import drop_unused_arrays, keep_at_hand, weight_bytes
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.sampling.sampler import usual_draws
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.engine import Decoding, LanguageEngine, SpeculativeDecoding
from pippin.engines.language.step.steering import ALONE, Steering
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.encoder import open_encoder
from pippin.engines.language.warm_prompts import rehearse, warm

log = logging.getLogger(__name__)


def open_engine(
    spec: WorkerSpec, preparer: LanguagePreparer, progress: LoadProgress
) -> LanguageEngine | LibraryEngine:
    """Raises `ServerError("load_failed")`."""
    options = preparer.options
    facts = find_facts()
    plan = decide(facts, options, spec.memory_bytes)
    warn_of_slow_cache(plan, options)
    configure(plan)
    threads, folder = spec.threads or os.cpu_count() or 1, Path(spec.info.path or "")
    way = load_model(spec.info, plan, preparer, progress, threads)
    preparer.loaded(way.media)
    if way.alone is not None:
        wire_weights(facts, options, weight_bytes(way.model))
        return LibraryEngine(way.alone, preparer, options, plan)
    asked = Asked(way.model, preparer.tokenizer, options, plan, folder, threads, progress)
    engine = build_engine(asked)
    keep_agreement(spec.info.id, engine.counters.agreement)
    preparer.finds_partings = engine.prefixes.has_snapshots
    drop_unused_arrays()  # trials take the logits of whole prompts, for which no step has a use
    wire_weights(facts, options, engine.counters.weight_bytes)
    keep_at_hand(way.model)
    if plan.compiles or plan.run_type != "float32":
        try_draws(engine, preparer.tokenizer)
    if options.warm_prompts is not None:
        count = warm(engine, preparer, spec.info.id, Path(options.warm_prompts))
        log.info("computed %d warm prompts", count)
    rehearse(engine)
    return engine


def try_draws(engine: LanguageEngine, tokenizer: Tokenizer) -> None:
    """Compute the draws that clients ask for most: a GPU compiles what it has not computed before. Raises
    `ServerError("load_failed")` where the model overflows in 16 bits, whose every answer would be one token again and
    again: the trials, in float32, would not show it."""
    first = min(tokenizer.bos or 1, tokenizer.rows - 1)
    with engine.batch.model.head.only([0]):
        logits = engine.model(mx.array([[first, first]]), cache=new_prompt_cache(engine.model))
    mx.eval(usual_draws(tokenizer, logits[:, -1]))
    if mx.all(mx.isnan(logits)).item():
        kind = str(logits.dtype).removeprefix("mlx.core.")
        message = (
            f"The logits of this model are no numbers in {kind}: give it another dtype, bfloat16 or float32."
        )
        raise ServerError("load_failed", message, "dtype")


def build_engine(asked: Asked, steering: Steering = ALONE) -> LanguageEngine:
    """An engine around a loaded model. One that is steered from elsewhere checks no proposals."""
    model, tokenizer, options, plan = asked.model, asked.tokenizer, asked.options, asked.plan
    adapters = install(model, options.adapter_path, options.adapters)
    named = named_of(asked)
    batching = find_batching(asked, adapters, named)
    tokenizer.rows = min(tokenizer.rows, batching.vocabulary)
    loaded = LoadedModel(
        module=model,
        tokenizer=tokenizer,
        vocabulary=batching.vocabulary,
        head=Head(model, batching.vocabulary, named),
        adapters=adapters,
        vision=open_encoder(model, options.vision_cache_size, plan.memory_limit, rests=not plan.overlaps),
        joins_prompts=batching.shape is not None and batching.layout.joins,
    )
    return _around(loaded, asked, batching, steering)


def _around(loaded: LoadedModel, asked: Asked, batching: Batching, steering: Steering) -> LanguageEngine:
    """The engine around a model whose batches are known."""
    options, plan, alone = asked.options, asked.plan, steering is ALONE
    speculation = open_speculation(asked, loaded.head, batching) if alone else None
    size = weight_bytes(asked.model) + (0 if speculation is None else speculation.proposer.weight_bytes)
    most = None if plan.largest_array is None else batching.layout.most_bytes(plan.largest_array)

    def share(memory: int) -> MemoryShares:
        return share_memory(min(memory, plan.most_memory), options, size, most)

    shares = share(plan.memory_limit)
    limits = limits_of(asked, batching, shares.sequences)
    if speculation is not None and speculation.always:
        limits.draft_bytes = speculation.proposer.sequence_bytes
    groups = CacheGroups(batching.layout, batching.new_group)
    sampler = steering.sampler(asked.tokenizer, plan.sorts_slowly)
    engine = LanguageEngine(
        options=options,
        limits=limits,
        share=share,
        batch=Batch(groups, loaded, sampler, () if speculation is None else speculation.followers),
        prefixes=open_prefixes(asked, batching, shares.prefixes),
        decoding=Decoding if speculation is None else partial(SpeculativeDecoding, speculation=speculation),
        overlaps=plan.overlaps,
        steering=steering,
    )
    engine.counters.weight_bytes = size
    engine.counters.agreement = batching.agreement
    return engine
