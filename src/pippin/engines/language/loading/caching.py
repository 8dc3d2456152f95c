"""How the sequences of a model run together, what is kept of their prompts, and how much a step takes on."""

import logging
import platform
from functools import partial
from pathlib import Path

import mlx.core as mx

from pippin.config.options.model import ModelOptions, cache_bits
from pippin.core.errors import ServerError
from pippin.engines.device import DevicePlan, kernels_read_cache
from pippin.engines.language.kept import code
from pippin.engines.language.kv_cache.layout import (
    BlockLayout,
    cut_in_place,
    cut_stacked,
    fill_in_place,
    fill_joined,
)
from pippin.engines.language.kv_cache.probe import Batching, DoesNotRun, choose_batching
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.model.explaining import doubtful_fields
from pippin.engines.language.model.lora import Adapters
from pippin.engines.language.prefix_cache.cache import PIECE, NoPrefixes, PrefixCache, PrefixTree
from pippin.engines.language.prefix_cache.disk import DiskCache, fingerprint
from pippin.engines.language.step.prefill import MOST_STRETCH
from pippin.engines.language.step.scheduler import ANY_PAIRS, StepLimits, target_gap
from pippin.engines.refusals import unusable

log = logging.getLogger(__name__)


def find_batching(asked: Asked, adapters: Adapters, named: str | None) -> Batching:
    """How sequences of the model run together; `named` as `named_of` says. Raises `ServerError("load_failed")`."""
    try:
        batching = choose_batching(asked.model, asked.options, named, asked.plan.launch_bytes)
    except DoesNotRun as error:
        hint = "" if asked.folder is None else doubtful_fields(asked.folder)
        raise ServerError("load_failed", error.report.message + hint) from error
    if adapters.names and batching.shape is None:
        raise unusable("adapters", "with this model: its sequences run one at a time")
    return batching


def named_of(asked: Asked) -> str | None:
    """What tells the model, its options and the machine from others; None where nothing is kept on the disk."""
    if asked.folder is None:
        return None
    return f"{_print_of(asked, asked.folder)} {platform.node()} {mx.device_info()}"


def open_prefixes(asked: Asked, batching: Batching, limit: int) -> PrefixCache:
    """The prefix cache with a limit of so many bytes."""
    options = asked.options
    if not (options.prefix_cache and batching.shape is not None and limit):
        return NoPrefixes()
    ways = (fill_in_place, cut_in_place) if asked.plan.writes_in_place else (fill_joined, cut_stacked)
    blocks = BlockLayout(batching.shape.layout, *ways, asked.plan.most_cached_arrays)
    size = options.cache_block_tokens
    # States are found at ends of blocks alone, where keys and values are found by the piece.
    block = PIECE if blocks.has_snapshots and size % PIECE == 0 else size
    tree = PrefixTree(block, limit, leaf_limit=options.prompt_cache_size)
    prefixes = PrefixCache(tree, blocks, _open_disk(asked))
    prefixes.state_tokens = size
    prefixes.open()
    return prefixes


def _open_disk(asked: Asked) -> DiskCache | None:
    """What of the prefix cache is kept on the disk. Raises `ServerError("load_failed")`."""
    options = asked.options
    if options.cache_dir is None or asked.folder is None:
        return None
    try:
        return DiskCache(
            Path(options.cache_dir).expanduser(),
            _print_of(asked, asked.folder),
            int(options.cache_disk_max_gb * 1e9),
        )
    except OSError as error:
        raise ServerError(
            "load_failed", f"cache_dir {options.cache_dir!r} cannot be used: {error.strerror}.", "cache_dir"
        ) from error


def _print_of(asked: Asked, folder: Path) -> str:
    """Tells what computes the caches from all else that does, an older version among it: it may have been mended."""
    options = asked.options
    bits = "/".join(map(str, dict.fromkeys(cache_bits(options))))  # one number where both are alike
    plan = asked.plan
    details = f"{code()} {plan.run_type} {plan.kernels} {plan.activations} {options.cache_block_tokens} "
    details += f"{bits} {options.kv_group_size}"
    if options.context_length is not None:  # positions may be turned by it
        details += f" {options.context_length} tokens"
    adapters = sorted({**options.adapters, "": options.adapter_path or ""}.items())
    prints = (f"{name} {fingerprint(Path(path).expanduser())}" for name, path in adapters if path)
    return fingerprint(folder, details, *prints)


def limits_of(asked: Asked, batching: Batching, memory: int) -> StepLimits:
    """`memory`: bytes for running sequences and prompts under way."""
    options, plan = asked.options, asked.plan
    chunk = int(plan.prefill_chunk * MOST_STRETCH)
    return StepLimits(
        max_sequences=options.max_num_seqs,
        queue_size=options.queue_size,
        prefill_chunk=plan.prefill_chunk,
        attention_pairs=plan.attention_pairs or ANY_PAIRS,
        target_gap=target_gap(options.target_gap_ms, overlaps=plan.overlaps),
        sequence_bytes=batching.slot_bytes,
        prompt_bytes=partial(batching.layout.prompt_bytes, chunk=chunk),
        memory=memory,
        slack=batching.slack,
        prompts_in_slots=batching.shape is not None and batching.shape.prompts_in_slots,
        aside_bytes=partial(batching.layout.aside_bytes, chunk=chunk),
    )


def warn_of_slow_cache(plan: DevicePlan, options: ModelOptions) -> None:
    """Tell the operator where bits of the KV cache keep the kernels for CPUs away, which is many times slower."""
    if not plan.overlaps and options.cpu_kernels == "auto" and not kernels_read_cache(options):
        log.warning(
            "the model runs in float32, without the kernels for CPUs: they read keys and values of 4 or 8 bits, alike, "
            "scaled in groups; take kv_bits 4 or 8, or none"
        )
