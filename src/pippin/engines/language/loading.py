"""From a model folder to an engine that is ready: weights, memory, kind of batch, warm-up."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.config.model_options import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.device import DevicePlan, apply_limits, decide, find_facts, share_memory
from pippin.engines.language.disk_cache import DiskCache, fingerprint
from pippin.engines.language.engine import LanguageEngine
from pippin.engines.language.prefix_blocks import BlockLayout
from pippin.engines.language.prefix_cache import PrefixCache
from pippin.engines.language.prefix_tree import PrefixTree
from pippin.engines.language.prompt import LanguagePreparer
from pippin.engines.language.row_caches import RowCache, arrays_of, can_batch, measure_rows, new_row_cache
from pippin.engines.language.row_group import ArenaGroup, RowGroup, SoloGroup
from pippin.engines.language.scheduler import Limits
from pippin.engines.language.tokenizer import Tokenizer
from pippin.engines.language.warm_prompts import warm
from pippin.engines.language.weights import load_weights, weight_bytes

log = logging.getLogger(__name__)

PROBE_LENGTHS = (5, 3)  # tokens of two rows of different length
PROBE_TOLERANCE = 0.02  # of the largest logit: far above rounding, far below a wrong answer


def load_engine(spec: WorkerSpec, preparer: LanguagePreparer, progress: LoadProgress) -> LanguageEngine:
    options = msgspec.convert(spec.options, ModelOptions)
    _refuse_unbuilt(options)
    plan = decide(find_facts(), options, spec.memory_bytes)
    apply_limits(plan)
    model, _ = load_weights(spec.info, plan, progress, trust_remote_code=options.trust_remote_code)
    engine = build_engine(model, preparer.tokenizer, options, plan, folder=Path(spec.info.path or ""))
    if options.warm_prompts is not None:
        count = warm(engine, preparer, spec.info.id, Path(options.warm_prompts))
        log.info("computed %d warm prompts", count)
    return engine


def build_engine(
    model: nn.Module,
    tokenizer: Tokenizer,
    options: ModelOptions,
    plan: DevicePlan,
    *,
    folder: Path | None = None,
) -> LanguageEngine:
    """An engine around a loaded model."""
    size = weight_bytes(model)
    shares = share_memory(plan, options, size)
    new_group, vocabulary, batched = _choose_group(model, slack=options.cache_block_tokens)
    prefixes = None
    if options.prefix_cache and batched and shares.prefixes:
        prefixes = _open_prefixes(model, options, plan, shares.prefixes, folder)
    engine = LanguageEngine(
        model,
        tokenizer,
        options=options,
        limits=Limits(
            max_rows=options.max_num_seqs,
            queue_size=options.queue_size,
            prefill_chunk=plan.prefill_chunk,
            target_gap=options.target_gap_ms / 1e3,
            row_bytes=measure_rows(model),
            memory=shares.rows,
        ),
        new_group=new_group,
        vocabulary=vocabulary,
        prefixes=prefixes,
    )
    engine.counters.weight_bytes = size
    return engine


def _open_prefixes(
    model: nn.Module, options: ModelOptions, plan: DevicePlan, limit: int, folder: Path | None
) -> PrefixCache:
    tree = PrefixTree(options.cache_block_tokens, limit, leaf_limit=options.prompt_cache_size)
    layout = BlockLayout(_probe_row(model, 2), lambda: new_row_cache(model))
    disk = None
    if options.cache_dir is not None and folder is not None:
        shape = f"{plan.run_type} {options.cache_block_tokens} {options.kv_bits} {options.kv_group_size}"
        try:
            disk = DiskCache(
                Path(options.cache_dir).expanduser(),
                fingerprint(folder, shape),
                int(options.cache_disk_max_gb * 1e9),
            )
        except OSError as error:
            raise ServerError(
                "load_failed",
                f"cache_dir {options.cache_dir!r} cannot be used: {error.strerror}.",
                "cache_dir",
            ) from error
    return PrefixCache(tree, layout, disk)


def _refuse_unbuilt(options: ModelOptions) -> None:
    asked = {
        "kv_bits": options.kv_bits is not None,
        "draft_model_path": options.draft_model_path is not None,
        "prompt_lookup": options.prompt_lookup,
        "adapter_path": options.adapter_path is not None,
        "adapters": bool(options.adapters),
    }
    names = [name for name, wanted in asked.items() if wanted]
    if names:
        raise ServerError(
            "load_failed",
            f"{', '.join(names)}: not built yet for language models; start without it.",
            names[0],
        )


def _choose_group(model: nn.Module, slack: int) -> tuple[Callable[[], RowGroup], int, bool]:
    """How rows of this model run together, and its vocabulary; compiles what the first request would wait for."""
    started = time.monotonic()
    try:
        caches = [_probe_row(model, length) for length in PROBE_LENGTHS]
        alone = mx.concatenate(
            [model(mx.array([[1]]), cache=_probe_row(model, length)) for length in PROBE_LENGTHS]
        )
        mx.eval(alone)
    except (ValueError, TypeError, AttributeError, RuntimeError, IndexError) as error:
        raise ServerError(
            "load_failed", f"The model does not run: {type(error).__name__}: {error}"
        ) from error
    vocabulary = alone.shape[-1]
    if not can_batch(caches[0]) or not _rows_agree(model, slack, caches, alone):
        log.warning(
            "this model's rows run one at a time and its prompts are not cached: its caches are of a kind of their own"
        )
        return (lambda: SoloGroup(model)), vocabulary, False
    log.info("warm-up took %.2f s", time.monotonic() - started)
    return (lambda: ArenaGroup(model, slack)), vocabulary, True


def _probe_row(model: nn.Module, length: int) -> RowCache:
    cache = new_row_cache(model)
    model(mx.arange(1, length + 1)[None], cache=cache)
    mx.eval(arrays_of(cache))
    return cache


def _rows_agree(model: nn.Module, slack: int, caches: list[RowCache], alone: mx.array) -> bool:
    """Whether two rows of different length give in a batch what they give alone."""
    group = ArenaGroup(model, slack)
    try:
        for cache, length in zip(caches, PROBE_LENGTHS, strict=True):
            group.join(cache, length, 1)
        together = group.forward(mx.array([[1]] * len(caches)))
        mx.eval(together)
    except (ValueError, TypeError, AttributeError, RuntimeError, IndexError) as error:
        log.info("a batch of two rows fails: %s", error)
        return False
    difference = mx.abs(together - alone).max() / mx.maximum(mx.abs(alone).max(), 1e-6)
    return float(difference) < PROBE_TOLERANCE
