"""From a model folder to an engine that is ready: weights, memory, kind of batch, warm-up."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.config.options.model import ModelOptions, cache_bits
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.cpu.functions import steady
from pippin.engines.cpu.in_place import copy_blocks
from pippin.engines.cpu.sharing import open_blas_threads
from pippin.engines.device import (
    DevicePlan,
    configure,
    decide,
    find_facts,
    kernels_read_cache,
    share_memory,
)
from pippin.engines.language.drafters import loading as drafters
from pippin.engines.language.kernels import ways
from pippin.engines.language.kv_cache.groups import BatchShape, CacheGroups
from pippin.engines.language.kv_cache.layout import CacheLayout, probe_prompt
from pippin.engines.language.kv_cache.probe import (
    Batching,
    can_rewind,
    choose_batching,
)
from pippin.engines.language.kv_cache.slots import unmarked
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.library.engine import LibraryEngine
from pippin.engines.language.library.loading import open_autoregressive_engine, open_diffusion_engine
from pippin.engines.language.model.experts import fewer_experts, memory_for_experts
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.loaded import LoadedModel
from pippin.engines.language.model.lora import Adapters, adapters_in, install, is_low_rank
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.model.weights import (
    KernelUse,
    Reading,
    drop_unused_arrays,
    load_weights,
    weight_bytes,
)
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.prefix_cache.disk import DiskCache, fingerprint
from pippin.engines.language.prefix_cache.text import RememberedText
from pippin.engines.language.prefix_cache.tree import BlockLayout, PrefixTree
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.step.prefill import MOST_STRETCH
from pippin.engines.language.step.scheduler import StepLimits
from pippin.engines.language.step.speculation.assistants import Assistants
from pippin.engines.language.step.speculation.clock import StepClock
from pippin.engines.language.step.speculation.draft_model import MOST_NEW, DraftModel
from pippin.engines.language.step.speculation.followers import Follower
from pippin.engines.language.step.speculation.heads import Heads
from pippin.engines.language.step.speculation.pace import Pace
from pippin.engines.language.step.speculation.proposers import Either, Lookup, Proposer
from pippin.engines.language.step.speculation.verification import Speculation
from pippin.engines.language.step.steering import ALONE, Steering
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.encoder import VisionEncoder
from pippin.engines.language.vision.media import TEXT_ONLY
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.language.warm_prompts import warm
from pippin.engines.language.ways import choose_way

log = logging.getLogger(__name__)

FEATURES_SHARE = 32  # of the memory, one part at most for features of media


def open_engine(
    spec: WorkerSpec, preparer: LanguagePreparer, progress: LoadProgress
) -> LanguageEngine | LibraryEngine:
    if preparer.diffusion is not None:
        return open_diffusion_engine(spec, preparer, preparer.diffusion, progress)
    options = convert(spec.options, ModelOptions)
    plan = decide(find_facts(), options, spec.memory_bytes)
    warn_of_slow_cache(plan, options)
    configure(plan)
    model = _load_model(spec, preparer, options, plan, progress)
    if isinstance(model, AutoregressiveModel):
        return open_autoregressive_engine(model, preparer, options, plan)
    engine = build_engine(
        model,
        preparer.tokenizer,
        options,
        plan,
        folder=Path(spec.info.path or ""),
        progress=progress,
        kernel_threads=_kernel_threads(spec),
    )
    drafts = drafter_of(options, Path(spec.info.path or "")) is not None
    if drafts or not ways.computes_all(model):  # else the BLAS has nothing to do
        engine.blas_threads = open_blas_threads(spec.threads)
    drop_unused_arrays()  # trials take the logits of whole prompts, for which no step has a use
    if options.warm_prompts is not None:
        count = warm(engine, preparer, spec.info.id, Path(options.warm_prompts))
        log.info("computed %d warm prompts", count)
    return engine


def _kernel_threads(spec: WorkerSpec) -> int:
    return spec.threads or os.cpu_count() or 1


def _load_model(
    spec: WorkerSpec,
    preparer: LanguagePreparer,
    options: ModelOptions,
    plan: DevicePlan,
    progress: LoadProgress,
) -> nn.Module | AutoregressiveModel:
    """The model with its weights, in the way in which it runs; tells the preparer which media it takes."""
    experts = memory_for_experts(spec.info, options.expert_cache_gb, plan.memory_limit)
    reading = Reading(
        trust_remote_code=options.trust_remote_code,
        experts=experts,
        changed=fewer_experts(spec.info, options.moe_top_k),
    )
    # Adapters that are not LoRA become part of mlx-lm's own layers.
    known = options.adapter_path is None or is_low_rank(options.adapter_path)
    use = KernelUse(threads=_kernel_threads(spec)) if known else None
    model, _ = load_weights(spec.info, plan, progress, reading, use=use)
    if experts is not None:
        kept = experts.kept / 1e9
        log.info("the model reads its experts from the disk; %.3g GB of them stay", kept)
    media = TEXT_ONLY
    if not isinstance(model, VisionModel):
        pass
    elif (way := choose_way(model, preparer)) is not None:
        model, media = way.model, way.media
    elif experts is not None:
        message = f"The model {spec.info.id!r} cannot be loaded: mlx-vlm's model of it does not run."
        raise ServerError("load_failed", message)
    else:
        log.warning("the model is served for text only: mlx-vlm's model does not run")
        as_text = Reading(trust_remote_code=options.trust_remote_code, text_only=True)
        model, _ = load_weights(spec.info, plan, progress, as_text)
    preparer.loaded(media)
    return model


def build_engine(
    model: nn.Module,
    tokenizer: Tokenizer,
    options: ModelOptions,
    plan: DevicePlan,
    *,
    folder: Path | None = None,
    progress: LoadProgress = lambda done, total, message: None,
    kernel_threads: int | None = None,
    steering: Steering = ALONE,
) -> LanguageEngine:
    """An engine around a loaded model. `kernel_threads`: with which the kernels for CPUs compute a draft head or a
    draft model. One that is steered from elsewhere checks no proposals."""
    spare = adapters_in(options.adapter_dir)
    adapters = install(model, options.adapter_path, options.adapters, spare)
    batching = _choose_batching(model, options, plan, adapters)
    head = Head(model, batching.vocabulary)
    looks_back = options.prompt_lookup and options.prefix_cache and steering is ALONE
    remembered = RememberedText() if looks_back else None
    asked = _Asked(options, plan, tokenizer, folder, kernel_threads, remembered)
    speculation = _open_speculation(asked, model, head, batching, progress) if steering is ALONE else None
    size = weight_bytes(model)
    size += 0 if speculation is None else speculation.proposer.weight_bytes
    shares = share_memory(plan, options, size)
    prefixes = _open_prefixes(batching, asked, shares.prefixes)
    loaded = LoadedModel(
        module=model,
        tokenizer=tokenizer,
        vocabulary=batching.vocabulary,
        head=head,
        adapters=adapters,
        vision=_open_vision(model, options, plan),
        joins_prompts=batching.joint_prompts,
    )
    groups = CacheGroups(batching.layout, batching.new_group)
    engine = LanguageEngine(
        loaded,
        options=options,
        limits=_limits(options, plan, batching, speculation, shares.sequences),
        share=lambda memory: share_memory(msgspec.structs.replace(plan, memory_limit=memory), options, size),
        batch=_batch(groups, loaded, plan, steering, speculation),
        prefixes=prefixes,
        speculation=speculation,
        steering=steering,
    )
    engine.counters.weight_bytes = size
    return engine


def _batch(
    groups: CacheGroups,
    model: LoadedModel,
    plan: DevicePlan,
    steering: Steering,
    speculation: Speculation | None,
) -> Batch:
    sampler = steering.sampler(model.tokenizer, plan.sorts_slowly)
    heads = None if speculation is None else speculation.heads
    return Batch(groups, model, sampler, overlaps=plan.overlaps, heads=heads)


def _choose_batching(
    model: nn.Module, options: ModelOptions, plan: DevicePlan, adapters: Adapters
) -> Batching:
    batching = choose_batching(model, options, _mark_constant(plan))
    if adapters.names and batching.shape is None:
        message = (
            "Adapters cannot be used with this model: its sequences run one at a time. Start without them."
        )
        raise ServerError("load_failed", message, "adapters")
    return batching


def _mark_constant(plan: DevicePlan) -> Callable[[mx.array], mx.array]:
    """Rotary positions that are promised not to change are only remembered by what stands in for slow functions."""
    return steady if plan.slow_functions else unmarked


def _limits(
    options: ModelOptions,
    plan: DevicePlan,
    batching: Batching,
    speculation: Speculation | None,
    memory: int,
) -> StepLimits:
    """`memory`: bytes for running sequences and prompts under way."""
    chunk = int(plan.prefill_chunk * MOST_STRETCH)
    prompt_bytes: Callable[[int], int] = partial(batching.layout.prompt_bytes, chunk=chunk)
    aside_bytes: Callable[[int], int] = partial(batching.layout.aside_bytes, chunk=chunk)
    return StepLimits(
        max_sequences=options.max_num_seqs,
        queue_size=options.queue_size,
        prefill_chunk=plan.prefill_chunk,
        longest_chunk=None if plan.attention_pairs is None else plan.longest_chunk,
        target_gap=options.target_gap_ms / 1e3,
        sequence_bytes=batching.slot_bytes,
        prompt_bytes=prompt_bytes,
        draft_bytes=speculation.proposer.sequence_bytes if speculation and speculation.always else None,
        memory=memory,
        slack=batching.slack,
        prompts_in_slots=batching.shape is not None and batching.shape.prompts_in_slots,
        aside_bytes=aside_bytes,
    )


def _open_vision(model: nn.Module, options: ModelOptions, plan: DevicePlan) -> VisionEncoder | None:
    if not isinstance(model, VisionModel):
        return None
    return VisionEncoder(model, options.vision_cache_size, plan.memory_limit // FEATURES_SHARE)


@dataclass(frozen=True)
class _Asked:
    """What the prefix cache and speculation are opened by."""

    options: ModelOptions
    plan: DevicePlan
    tokenizer: Tokenizer
    folder: Path | None  # of the model
    kernel_threads: int | None
    remembered: RememberedText | None = None  # of the prefix cache


def _open_prefixes(batching: Batching, asked: _Asked, limit: int) -> PrefixCache | None:
    """The prefix cache with a limit of so many bytes; None where there is none."""
    options = asked.options
    if not (options.prefix_cache and batching.shape is not None and limit):
        return None
    leaves = options.prompt_cache_size
    tree = PrefixTree(options.cache_block_tokens, limit, leaf_limit=leaves, watcher=asked.remembered)
    blocks = BlockLayout(batching.shape.layout, host_copy=copy_blocks if asked.plan.writes_in_place else None)
    return PrefixCache(tree, blocks, _open_disk(asked))


def _open_disk(asked: _Asked) -> DiskCache | None:
    """What of the prefix cache is kept on the disk. Raises `ServerError("load_failed")`."""
    options = asked.options
    if options.cache_dir is None or asked.folder is None:
        return None
    bits = _told(cache_bits(options))
    details = f"{asked.plan.run_type} {options.cache_block_tokens} {bits} {options.kv_group_size}"
    if options.moe_top_k is not None:
        details += f" {options.moe_top_k} experts"
    try:
        return DiskCache(
            Path(options.cache_dir).expanduser(),
            fingerprint(asked.folder, details, *_adapter_prints(options)),
            int(options.cache_disk_max_gb * 1e9),
        )
    except OSError as error:
        raise ServerError(
            "load_failed",
            f"cache_dir {options.cache_dir!r} cannot be used: {error.strerror}.",
            "cache_dir",
        ) from error


def _told(bits: tuple[int | None, int | None]) -> str:
    """Bits of keys and values as the disk's fingerprint has them: one number where they are alike."""
    return str(bits[0]) if bits[0] == bits[1] else f"{bits[0]}/{bits[1]}"


def _adapter_prints(options: ModelOptions) -> list[str]:
    folders = {**adapters_in(options.adapter_dir), **options.adapters, "": options.adapter_path or ""}
    return [
        f"{name} {fingerprint(Path(path).expanduser())}" for name, path in sorted(folders.items()) if path
    ]


def _open_speculation(
    asked: _Asked, model: nn.Module, head: Head, batching: Batching, progress: LoadProgress
) -> Speculation | None:
    """What judges proposals: those of the options, and predictions of clients where the model can take tokens back at
    all. Raises `ServerError("load_failed")` where the options cannot be had."""
    options = asked.options
    named = drafter_of(options, asked.folder)
    if not batching.rewinds:
        if named is None and not options.prompt_lookup:
            return None
        raise _no_proposals(_drafting_option(options, named), batching)
    proposer: Proposer = Lookup(in_text=options.prompt_lookup, remembered=asked.remembered)
    heads: Follower | None = None
    if named is not None:
        with drafters.refusals_name(_drafting_option(options, named)):
            drafter, heads = _open_drafter(named, asked, model, head, batching, progress)
        proposer = Either(proposer, drafter)
    most = options.num_draft_tokens
    keeps_prefixes = options.prefix_cache and batching.shape is not None
    has_state = keeps_prefixes and any(kind.replays for kind in batching.layout.kinds)
    block = options.cache_block_tokens if has_state else None
    costs = asked.plan.product_costs if getattr(model, "takes_padding", False) else ()
    pace = Pace(most, overlaps=asked.plan.overlaps, costs=costs)
    always = options.prompt_lookup or named is not None
    cores = time.process_time if asked.plan.shares_cores else None
    clock = StepClock(cores=cores, threads=asked.kernel_threads or 1)
    return Speculation(
        proposer,
        pace,
        most=most,
        block=block,
        always=always,
        heads=heads,
        clock=clock,
    )


def _drafting_option(options: ModelOptions, named: Path | None) -> str:
    """The option that asks for proposals."""
    return "prompt_lookup" if named is None else "mtp" if options.mtp else drafters.OPTION


def _no_proposals(option: str, batching: Batching) -> ServerError:
    """The refusal for a model whose sequences cannot take tokens back."""
    reason = "the caches of this model cannot take tokens back"
    if batching.shape is None:
        reason = (
            "no trial showed that a step of several tokens gives with this model what they give one by one"
        )
    return ServerError("load_failed", f"{option} cannot be used: {reason}. Start without it.", option)


def _open_drafter(
    named: Path, asked: _Asked, model: nn.Module, head: Head, batching: Batching, progress: LoadProgress
) -> tuple[Proposer, Follower | None]:
    """What drafts, twice where it follows the model's passes."""
    options = asked.options
    kind = drafters.find_kind(named, own=options.mtp)
    check_draft_kind(named, kind, options.draft_kind)
    if kind == "model":
        return _open_draft_model(named, asked, progress), None
    follower = _open_follower(named, kind, asked, model, head, batching)
    return follower, follower


def drafter_of(options: ModelOptions, folder: Path | None) -> Path | None:
    """The folder of the drafter that is asked for. Raises `ServerError("load_failed")` where two are."""
    if options.mtp and options.draft_model_path is not None:
        message = (
            "mtp drafts with the head in the model's own checkpoint, draft_model_path with another: give one."
        )
        raise ServerError("load_failed", message, "mtp")
    if options.mtp:
        return folder
    return None if options.draft_model_path is None else Path(options.draft_model_path).expanduser()


def warn_of_slow_cache(plan: DevicePlan, options: ModelOptions) -> None:
    """Tell the operator where bits of the KV cache keep the kernels for CPUs away, which is many times slower."""
    if plan.shares_cores and options.cpu_kernels == "auto" and not kernels_read_cache(options):
        log.warning(
            "the model runs in float32, without the kernels for CPUs: they read keys and values of 4 or 8 bits, alike, "
            "scaled in groups; take kv_bits 4 or 8, or none"
        )


def check_draft_kind(folder: Path, kind: drafters.Kind, wanted: drafters.HeadKind | None) -> None:
    """Raises `ServerError("load_failed")` where the operator wants a head of another kind than the folder holds.
    For mlx-vlm assistants and heads behind the last layer are `mtp` too."""
    if wanted not in (None, "mtp" if kind in ("assistant", "layer") else kind):
        is_a = "a smaller model" if kind == "model" else f"a head of the kind {kind!r}"
        message = (
            f"The drafter {folder.name!r} is {is_a}, and draft_kind says {wanted!r}: leave draft_kind out."
        )
        raise ServerError("load_failed", message, "draft_kind")


def _open_follower(
    folder: Path,
    kind: drafters.HeadKind | Literal["assistant"],
    asked: _Asked,
    model: nn.Module,
    head: Head,
    batching: Batching,
) -> Follower:
    if kind == "assistant":
        assistant = drafters.open_assistant(folder, model, batching.vocabulary, asked.plan)
        log.info("drafts come from %s, an assistant that attends to the model's keys and values", folder.name)
        return Assistants(assistant, HiddenStates(model, head, None))
    most = asked.options.num_draft_tokens
    drafter = drafters.open_head(folder, kind, model, batching.vocabulary, asked.plan, asked.kernel_threads)
    layout = CacheLayout.learn(drafter, probe_prompt(drafter, 2))
    shape = BatchShape(layout=layout)
    takes_back = layout.rewinds and layout.checkpoints and layout.batches
    if takes_back and any(each.replays for each in layout.kinds):
        takes_back = can_rewind(drafter, shape)
    if not takes_back:
        message = (
            f"The draft head {folder.name!r} has layers that cannot take tokens back: choose another drafter."
        )
        raise ServerError("load_failed", message, drafters.OPTION)
    log.info("drafts come from %s, a head of the kind %s", folder.name, kind)
    states = HiddenStates(model, head, drafter.layers_read)
    return Heads(drafter, layout, states, most=most)


def _open_draft_model(folder: Path, asked: _Asked, progress: LoadProgress) -> DraftModel:
    """Raises `ServerError("load_failed")` for one that cannot run in batches and take tokens back."""
    options, plan, threads = asked.options, asked.plan, asked.kernel_threads
    use = None if threads is None else KernelUse(threads=threads)
    draft = _load_draft(folder, drafters.OPTION, options, plan, asked.tokenizer, progress, use)
    batching = choose_batching(draft, ModelOptions(), _mark_constant(plan))
    shape = batching.shape
    if shape is None or not (batching.rewinds and shape.layout.checkpoints):
        lack = "take tokens back" if shape is not None else "be batched"
        message = f"The draft model {folder.name!r} cannot be used: its caches cannot {lack}. Choose another."
        raise ServerError("load_failed", message, drafters.OPTION)
    log.info("drafts come from %s", folder.name)
    slack = max(MOST_NEW, options.num_draft_tokens + 1)
    shape = replace(shape, slack=slack, prompts_in_slots=False)
    head = Head(draft, batching.vocabulary)
    return DraftModel(draft, shape, head, chunk=plan.prefill_chunk)


def _load_draft(
    folder: Path,
    option: str,
    options: ModelOptions,
    plan: DevicePlan,
    tokenizer: Tokenizer,
    progress: LoadProgress,
    use: KernelUse | None,
) -> nn.Module:
    """The model that an option names, which reads the same tokens as the model it works for."""
    info = ModelInfo(id=folder.name, kind="language", path=str(folder))
    reading = Reading(trust_remote_code=options.trust_remote_code)
    draft, _ = load_weights(info, plan, progress, reading, use=use)
    if Tokenizer.load(folder).backend.get_vocab() != tokenizer.backend.get_vocab():
        message = f"The draft model {info.id!r} has another vocabulary than the model: choose one of the same family."
        raise ServerError("load_failed", message, option)
    return draft
