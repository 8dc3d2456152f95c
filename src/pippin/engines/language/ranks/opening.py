"""From a model folder to a rank that is ready: its part of the weights, and what it agrees on with the others."""

import logging
from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.config.options.model import ModelOptions, cache_bits
from pippin.core.decoding import convert, from_message
from pippin.core.errors import ServerError
from pippin.core.models import RankSpec, WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.device import DevicePlan, MemoryShares, configure, decide, find_facts, share_memory
from pippin.engines.language.loading import build_engine
from pippin.engines.language.model.weights import load_weights, weight_bytes
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.ranks.follower import Follower
from pippin.engines.language.ranks.leader import LeadingEngine
from pippin.engines.language.ranks.messages import Agreed, RankLink, Ready, encode, software
from pippin.engines.language.ranks.split import split_layers, split_within_layers
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.step.steering import Steering

log = logging.getLogger(__name__)

REFUSED = (
    "adapter_path adapters adapter_dir draft_model_path prompt_lookup cache_dir warm_prompts trust_remote_code"
).split()
"""Options that ranks do not have."""


def open_rank(
    spec: WorkerSpec, preparer: LanguagePreparer, progress: LoadProgress, link: RankLink
) -> LeadingEngine | Follower:
    """Raises `ServerError("load_failed")`."""
    rank = spec.rank
    assert rank is not None
    options = convert(spec.options, ModelOptions)
    refuse_options(options)
    plan = msgspec.structs.replace(decide(find_facts(), options, spec.memory_bytes), kernels=False)
    configure(plan)
    group = join_group(rank)
    split = split_within_layers if rank.split == "tensor" else split_layers
    model, _ = load_weights(
        spec.info, plan, progress, trust_remote_code=False, text_only=True, split=partial(split, group=group)
    )
    preparer.try_media(lambda _: False)
    shares = agree(link, rank, own_shares(model, options, plan))
    build = partial(_build, model, preparer, options, plan, shares)
    return LeadingEngine(link, build) if rank.rank == 0 else Follower(link, build)


def _build(
    model: nn.Module,
    preparer: LanguagePreparer,
    options: ModelOptions,
    plan: DevicePlan,
    shares: MemoryShares,
    steering: Steering,
) -> LanguageEngine:
    engine = build_engine(model, preparer.tokenizer, options, plan, steering=steering)
    engine.resize(shares)
    return engine


def refuse_options(options: ModelOptions) -> None:
    """Raises `ServerError("load_failed")` for options that ranks do not have."""
    ordinary = ModelOptions()
    for name in REFUSED:
        if getattr(options, name) != getattr(ordinary, name):
            message = f"{name} cannot be used with a model that is split over ranks: start without it."
            raise ServerError("load_failed", message, name)
    if cache_bits(options) != (None, None):
        message = "kv_bits cannot be used with a model that is split over ranks: start without it."
        raise ServerError("load_failed", message, "kv_bits")


def join_group(rank: RankSpec) -> mx.distributed.Group:
    """The ranks as MLX knows them; waits until all are there. Raises `ServerError("load_failed")`."""
    try:
        group = mx.distributed.init(strict=True, backend=rank.backend)
    except (RuntimeError, ValueError) as error:
        message = f"The ranks cannot reach each other by MLX's backend {rank.backend!r}: {error}"
        raise ServerError("load_failed", message, "rank_backend") from error
    if (group.rank(), group.size()) != (rank.rank, rank.size):
        message = (
            f"MLX's backend {rank.backend!r} has other ranks than Pippin: {group.rank()} of {group.size()}."
        )
        raise ServerError("load_failed", message, "rank_backend")
    return group


def own_shares(model: nn.Module, options: ModelOptions, plan: DevicePlan) -> MemoryShares:
    return share_memory(plan, options, weight_bytes(model))


def agree(link: RankLink, rank: RankSpec, own: MemoryShares) -> MemoryShares:
    """What each rank gives to sequences and to the prefix cache: as much as the poorest can.

    Raises `ServerError("load_failed")` where ranks differ in their software.
    """
    if rank.rank:
        link.tell(encode(Ready(software(), own)))
        [answer] = link.hear()
        return from_message(answer, Agreed).shares
    others = [from_message(payload, Ready) for payload in link.hear()]
    for number, other in enumerate(others, start=1):
        if other.software != software():
            message = (
                f"Rank {number} runs {other.software}, and rank 0 {software()}: install the same on both."
            )
            raise ServerError("load_failed", message, "ranks")
    shares = poorest([own, *(other.shares for other in others)])
    link.tell(encode(Agreed(shares)))
    return shares


def poorest(shares: Sequence[MemoryShares]) -> MemoryShares:
    return MemoryShares(
        sequences=min(each.sequences for each in shares), prefixes=min(each.prefixes for each in shares)
    )
