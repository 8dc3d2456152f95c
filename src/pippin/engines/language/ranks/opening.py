"""Opens a rank from a model folder: its part of the weights, and what it agrees on with the other ranks."""

import logging
from functools import partial
from pathlib import Path
from typing import Final

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.core.decoding import from_message
from pippin.core.errors import ServerError
from pippin.core.models import RankBackend, RankSpec, WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.device import MemoryShares, configure, decide, find_facts, wire_weights
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.prefix_cache.disk import fingerprint
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.ranks.follower import Follower
from pippin.engines.language.ranks.leader import LeadingEngine
from pippin.engines.language.ranks.messages import Hello, RankLink, Ready, encode, software
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.step.steering import Steering
from pippin.engines.language.vision.media import TEXT_ONLY
from pippin.engines.refusals import refuse_set

log = logging.getLogger(__name__)

REFUSED = (
    *("adapter_path", "adapters", "draft_model_path", "draft_kind", "mtp", "prompt_lookup", "cache_dir"),
    *("warm_prompts", "trust_remote_code", "kv_bits", "kv_key_bits", "kv_value_bits"),
)
"""Options that ranks do not support."""
HEADS = (
    "n_heads n_kv_heads num_heads num_kv_heads num_attention_heads num_key_value_heads num_k_heads num_v_heads"
).split()
"""What mlx-lm's attention and recurrent layers call the number of their heads."""
WANTED: Final[dict[RankBackend, str]] = {
    "ring": "It connects them by TCP, each to the next. Where a port was in use the next start takes another one.",
    "jaccl": "It needs Macs with Thunderbolt 5 whose RDMA is on, and on each of them MLX_IBV_DEVICES with the name of "
    "a file that lists their devices (mlx.distributed_config finds them).",
    "nccl": "It needs an NVIDIA GPU for each rank, and MLX for CUDA.",
}
"""What each backend asks of the machines."""


def open_rank(
    spec: WorkerSpec, preparer: LanguagePreparer, progress: LoadProgress, link: RankLink
) -> LeadingEngine | Follower:
    """Raises `ServerError("load_failed")`."""
    rank = spec.rank
    assert rank is not None
    options = preparer.options
    refuse_set(options, REFUSED, "with a model that is split over ranks")
    facts = find_facts()
    plan = msgspec.structs.replace(decide(facts, options, spec.memory_bytes), kernels=False)
    configure(plan)
    greet(link, rank, Hello(software(), fingerprint(Path(spec.info.path or ""))))
    group = join_group(rank)
    split = partial(split_model, group=group)
    model, _ = load_weights(spec.info, plan, progress, Reading(text_only=True), split=split)
    preparer.loaded(TEXT_ONLY)

    def build(steering: Steering) -> LanguageEngine:
        engine = build_engine(Asked(model, preparer.tokenizer, options, plan), steering)
        preparer.finds_partings = engine.prefixes.has_snapshots
        return engine

    found = LeadingEngine(link, build) if rank.rank == 0 else Follower(link, build)
    wire_weights(facts, options, found.engine.counters.weight_bytes)
    own = Ready(found.engine.share(plan.memory_limit), found.engine.prefixes.keeps)
    shares = agree(link, rank, found.engine, own)
    if isinstance(found, LeadingEngine):
        found.agreed(own.shares, shares)
    return found


def join_group(rank: RankSpec) -> mx.distributed.Group:
    """MLX's group of the ranks; waits until all have joined. Raises `ServerError("load_failed")`."""
    try:
        group = mx.distributed.init(strict=True, backend=rank.backend)
    except (RuntimeError, ValueError) as error:
        message = f"The ranks cannot reach each other by MLX's backend {rank.backend!r}: {error} {WANTED[rank.backend]}"
        raise ServerError("load_failed", message, "rank_backend") from error
    if (group.rank(), group.size()) != (rank.rank, rank.size):
        message = (
            f"MLX's backend {rank.backend!r} has other ranks than Pippin: {group.rank()} of {group.size()}."
        )
        raise ServerError("load_failed", message, "rank_backend")
    return group


def greet(link: RankLink, rank: RankSpec, own: Hello) -> None:
    """Check that all ranks are alike, before they wait for each other's arithmetic. If one is not, raises
    `ServerError("load_failed")` on rank 0, and the others wait until rank 0 ends."""
    if rank.rank:
        link.tell(encode(own))
        link.hear()
        return
    for number, payload in enumerate(link.hear(), start=1):
        compare(number, from_message(payload, Hello), own)
    link.tell(encode(own))


def compare(number: int, other: Hello, own: Hello) -> None:
    """Raises `ServerError("load_failed")` if the rank of this number differs from rank 0."""
    if other.software != own.software:
        message = f"Rank {number} runs {other.software}, and rank 0 {own.software}: install the same on both."
        raise ServerError("load_failed", message, "ranks")
    if other.model != own.model:
        message = f"Rank {number} has other files for this model than rank 0: bring the same ones there."
        raise ServerError("load_failed", message, "ranks")


def agree(link: RankLink, rank: RankSpec, engine: LanguageEngine, own: Ready) -> MemoryShares:
    """Let all ranks have the share that the poorest of them can hold.

    Raises `ServerError("load_failed")` if a rank has no memory left beside its weights.
    """
    if rank.rank:
        link.tell(encode(own))
        shares = from_message(link.hear()[0], MemoryShares)
    else:
        shares = reconciled([own, *(from_message(payload, Ready) for payload in link.hear())])
        link.tell(encode(shares))
    engine.resize(shares)
    return shares


def reconciled(ranks: list[Ready]) -> MemoryShares:
    """The smallest shares of any rank. Raises `ServerError("load_failed")`."""
    for number, other in enumerate(ranks):
        if other.keeps_prefixes != ranks[0].keeps_prefixes:
            message = f"Rank {number} has less memory than it needs beside its weights: make room there."
            raise ServerError("load_failed", message, "ranks")
    return MemoryShares(
        sequences=min(rank.shares.sequences for rank in ranks),
        prefixes=min(rank.shares.prefixes for rank in ranks),
    )


def split_model(model: nn.Module, group: mx.distributed.Group) -> None:
    """Keep a part of every layer, its heads and columns, by mlx-lm's own `shard`. Raises `ServerError("load_failed")`
    for an architecture without one, or whose heads cannot be divided evenly."""
    shard = getattr(model, "shard", None)
    if shard is None:
        raise _refusal(
            model, "mlx-lm cannot split the layers of this architecture", "Start it on one machine."
        )
    ranks = group.size()
    for _, module in model.named_modules():
        for name in HEADS:
            count = getattr(module, name, None)
            if isinstance(count, int) and count % ranks:
                why = f"its layers have {count} heads ({name}), which {ranks} ranks cannot share evenly"
                raise _refusal(model, why, "Take another number of --ranks.")
    try:
        shard(group)
    except (ValueError, AssertionError, AttributeError, TypeError) as error:
        raise _refusal(model, str(error), "Take another number of --ranks.") from error


def _refusal(model: nn.Module, why: str, way_out: str) -> ServerError:
    name = getattr(model, "model_type", type(model).__module__.rpartition(".")[2])
    return ServerError(
        "load_failed", f"A model of type {name!r} cannot be split so: {why}. {way_out}", "ranks"
    )
