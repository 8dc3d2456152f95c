"""Speculation as the options ask for it: what proposes tokens, and what decides whether that pays."""

import logging
from pathlib import Path

from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.published import name_of
from pippin.engines.language.drafters import loading as drafters
from pippin.engines.language.kv_cache.layout import CacheLayout, computed_prompt
from pippin.engines.language.kv_cache.probe import Batching, can_rewind, choose_batching
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.step.speculation.assistants import Assistants
from pippin.engines.language.step.speculation.draft_model import MOST_NEW, DraftModel
from pippin.engines.language.step.speculation.heads import Heads
from pippin.engines.language.step.speculation.pace import Pace
from pippin.engines.language.step.speculation.proposers import Either, Follower, Lookup, Proposer
from pippin.engines.language.step.speculation.verification import Speculation
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.refusals import unusable

log = logging.getLogger(__name__)


def open_speculation(asked: Asked, head: Head, batching: Batching) -> Speculation | None:
    """What judges proposals: those of the options, and predictions of clients if the model can take tokens back at
    all. Raises `ServerError("load_failed")` if the options cannot be had."""
    options = asked.options
    named = drafter_of(options, asked.folder)
    wanted = options.prompt_lookup or named is not None
    option = "prompt_lookup" if named is None else "mtp" if options.mtp else drafters.OPTION
    if not batching.rewinds:
        if not wanted:
            return None
        alone = batching.shape is None
        why = "its sequences run one at a time" if alone else "its caches cannot take tokens back"
        raise unusable(option, f"with this model: {why}")
    proposer: Proposer = Lookup(in_text=options.prompt_lookup, in_forms=named is None)
    if named is not None:
        with drafters.refusals_name(option):
            proposer = Either(proposer, _open_drafter(named, asked, head, batching))
    costs = asked.plan.product_costs if getattr(asked.model, "takes_padding", False) else ()
    # The prefix cache keeps states at the ends of blocks.
    keeps_states = options.prefix_cache and any(kind.replays for kind in batching.layout.kinds)
    return Speculation(
        proposer,
        Pace(options.num_draft_tokens, overlaps=asked.plan.overlaps, costs=costs),
        block=options.cache_block_tokens if keeps_states else None,
        always=wanted,
    )


def drafter_of(options: ModelOptions, folder: Path | None) -> Path | None:
    """The drafter's folder, if one is asked for. Raises `ServerError("load_failed")` where two are, or a kind alone."""
    if options.mtp and options.draft_model_path is not None:
        message = "mtp drafts with the model's own head, draft_model_path with another: give one."
        raise ServerError("load_failed", message, "mtp")
    if options.mtp:
        return folder
    if options.draft_model_path is not None:
        return Path(options.draft_model_path).expanduser()
    if options.draft_kind is not None:
        message = f"draft_kind says {options.draft_kind!r}, but there is no drafter: give draft_model_path or mtp too."
        raise ServerError("load_failed", message, "draft_kind")
    return None


def check_draft_kind(folder: Path, kind: drafters.Kind, wanted: drafters.HeadKind | None) -> None:
    """Raises `ServerError("load_failed")` where the operator wants a head of another kind than the folder holds.
    For mlx-vlm assistants and heads behind the last layer are `mtp` too."""
    if wanted not in (None, "mtp" if kind in ("assistant", "layer") else kind):
        is_a = "a smaller model" if kind == "model" else f"a head of the kind {kind!r}"
        message = f"The drafter {name_of(folder)!r} is {is_a}, and draft_kind says {wanted!r}: leave draft_kind out."
        raise ServerError("load_failed", message, "draft_kind")


def _open_drafter(folder: Path, asked: Asked, head: Head, batching: Batching) -> DraftModel | Follower:
    """What drafts: a smaller model, or what follows the passes of the model itself."""
    options, model, plan, words = asked.options, asked.model, asked.plan, batching.vocabulary
    name = name_of(folder)
    kind = drafters.find_kind(folder, own=options.mtp)
    check_draft_kind(folder, kind, options.draft_kind)
    if kind == "model":
        return open_draft_model(folder, asked)
    if kind == "assistant":
        assistant = drafters.open_assistant(folder, model, words, plan)
        log.info("drafts come from %s, an assistant that attends to the model's keys and values", name)
        return Assistants(assistant, HiddenStates(model, head, None))
    drafter = drafters.open_head(folder, kind, model, words, plan, asked.kernel_threads)
    layout = CacheLayout.learn(drafter, computed_prompt(drafter, (1, 2)))
    replays = any(each.replays for each in layout.kinds)
    if not layout.batches or (replays and not can_rewind(drafter, layout)):
        raise drafters.refused(
            f"The draft head {name!r} has layers that cannot take tokens back: choose another drafter."
        )
    log.info("drafts come from %s, a head of the kind %s", name, kind)
    states = HiddenStates(model, head, drafter.layers_read)
    return Heads(drafter, layout, states, most=options.num_draft_tokens)


def open_draft_model(folder: Path, asked: Asked) -> DraftModel:
    """Raises `ServerError("load_failed")` for one that reads other tokens than the model that it drafts for, or cannot
    run in batches and take tokens back."""
    info = ModelInfo(id=name_of(folder), kind="language", path=str(folder))
    reading = Reading(trust_remote_code=asked.options.trust_remote_code)
    draft, _ = load_weights(info, asked.plan, asked.progress, reading, kernel_threads=asked.kernel_threads)
    if Tokenizer.load(folder).backend.get_vocab() != asked.tokenizer.backend.get_vocab():
        message = f"The draft model {info.id!r} has another vocabulary than the model: choose one of the same family."
        raise drafters.refused(message)
    batching = choose_batching(draft, ModelOptions())
    shape = batching.shape
    if shape is None or not batching.rewinds:
        lack = "take tokens back" if shape is not None else "be batched"
        raise drafters.refused(
            f"The draft model {info.id!r} cannot be used: its caches cannot {lack}. Choose another."
        )
    log.info("drafts come from %s", info.id)
    slack = max(MOST_NEW, asked.options.num_draft_tokens + 1)
    shape = replace(shape, slack=slack, prompts_in_slots=False)
    head = Head(draft, batching.vocabulary)
    return DraftModel(draft, shape, head, chunk=asked.plan.prefill_chunk)
