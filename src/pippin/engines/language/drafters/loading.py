"""Which kind of drafter a folder holds, its weights, and whether it was made for the model."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, assert_never

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx.utils import tree_flatten

from pippin.config.errors import install_command
from pippin.core.errors import ServerError
from pippin.core.published import find_json, name_of
from pippin.engines.device import DevicePlan
from pippin.engines.language.configuration import spelled_out
from pippin.engines.language.drafters import layers
from pippin.engines.language.drafters.assistants import Assistant
from pippin.engines.language.drafters.heads import (
    DraftHead,
    Eagle3Head,
    HyperHead,
    IndexedHead,
    NemotronHead,
    PooledHead,
    PredictionHead,
    StreamsHead,
)
from pippin.engines.language.kernels import ways
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.kv_cache.layout import computed_prompt
from pippin.engines.language.model.weights import cast_weights
from pippin.engines.language.upstream.library import dequantize_model
from pippin.engines.language.upstream.reading import reading_spelled_out
from pippin.engines.language.upstream.rotary import complete, rotary_modules
from pippin.engines.language.vision.model import inner_of

HeadKind = Literal["eagle3", "mtp", "layer", "dflash"]
"""The heads of `heads.py`, those of `layers.py`, and the drafters of `blocks.py`; but for "layer" the names are
mlx-vlm's."""

Kind = Literal["model", "assistant"] | HeadKind
"""A smaller model, an assistant (`assistants.py`), or a head."""

TRIED = (1, 2)  # tokens of which an assistant is shown what its model keeps, for a trial

OPTION = "draft_model_path"
"""The option that refusals of drafters name, but for those that `refusals_name` gives another."""


PREDICTION_HEADS: dict[str, type[PredictionHead]] = {
    "qwen3_5_mtp": PredictionHead,
    "nemotron_h_mtp": NemotronHead,
    "glm_moe_dsa_mtp": IndexedHead,
    "glm5_next_mtp": PooledHead,
    "deepseek_v4_mtp": HyperHead,
    "qwen4_exp_mtp": StreamsHead,
}
"""Types of mlx-vlm's heads for multi-token prediction that go on by themselves in a batch."""

BLOCK_DRAFTERS = ("qwen3_dflash", "gemma4_dflash")
"""Types of mlx-vlm's drafters of blocks that `blocks.py` runs."""

ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""Types of mlx-vlm's drafters that attend to the keys and values of their model."""

OTHER_DRAFTERS = ("dflash", "dspark", "assistant", "mtp", "eagle")
"""What the types of mlx-vlm's other drafters have in their names."""


def refused(message: str) -> ServerError:
    return ServerError("load_failed", message, OPTION)


@contextlib.contextmanager
def refusals_name(option: str) -> Iterator[None]:
    """Let refusals of a drafter name the option that asked for it."""
    try:
        yield
    except ServerError as error:
        if error.report.param != OPTION:
            raise
        raise ServerError.of(msgspec.structs.replace(error.report, param=option)) from error


def find_kind(folder: Path, *, own: bool = False) -> Kind:
    """What a folder holds, by its configuration. `own`: the head in the checkpoint of the model itself is meant. Raises
    `ServerError("load_failed")` for drafters that are not known, or that are not there."""
    config = _configuration(folder)
    if own:
        return _own_kind(folder, config)
    names = [config.get(field) for field in ("speculators_model_type", "model_type")]
    names += config.get("architectures") or []
    told = " ".join(str(name).lower() for name in names)
    is_head = "dflash_config" in config or any(name in told for name in OTHER_DRAFTERS)
    if is_head:
        _check_library()
    if "eagle3" in told:
        return "eagle3"
    if config.get("model_type") in PREDICTION_HEADS:
        return "mtp"
    if is_head:
        from mlx_vlm.utils import get_model_type

        normalised = get_model_type(config)
        if normalised in BLOCK_DRAFTERS:
            return "dflash"
        if normalised in ASSISTANTS:
            return "assistant"
        known = ", ".join((*PREDICTION_HEADS, *BLOCK_DRAFTERS, *ASSISTANTS))
        raise refused(
            f"The drafter {name_of(folder)!r} is of the type {normalised!r}, which this version "
            f"cannot run: take a smaller model, an EAGLE-3 head, or a head of the type {known}."
        )
    return "model"


def _configuration(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        way_out = (
            "give the folder in which it lies"
            if folder.is_absolute()
            else f"fetch it by `pippin pull {folder}`"
        )
        raise refused(f"The draft model {str(folder)!r} is not here: {way_out}.")
    config = find_json(folder / "config.json")
    if config is None:
        raise refused(f"The draft model {name_of(folder)!r} has no config.json. Download it again.")
    return spelled_out(config)


def _own_kind(folder: Path, config: dict[str, Any]) -> Kind:
    """The kind of the head inside a model's checkpoint: behind its last layer, or one that mlx-vlm takes out."""
    kind: Kind = "layer" if config.get("model_type") in layers.FAMILIES else "mtp"
    known = True
    with _usable(folder):
        if kind == "layer":
            found = "layer" if layers.has_layer_head(folder, config) else None
        else:
            _check_library()
            from mlx_vlm.speculative.drafters.mtp_split import detect_mtp_splitter, get_mtp_splitter

            known = get_mtp_splitter(source_config=config) is not None
            splitter = detect_mtp_splitter(folder)
            found = None if splitter is None else splitter.output_model_type
    if not known:
        raise refused(
            f"{name_of(folder)!r} is of the architecture {config.get('model_type')!r}, of which this version runs no "
            "prediction head: start without mtp, or give a smaller model as draft_model_path.",
        )
    if found is None:
        raise refused(
            f"{name_of(folder)!r} has no head for multi-token prediction: most converted models lack its weights. "
            "Start without it, take the model as it was published, or split the head off: mlx_vlm.convert --hf-path "
            "NAME --mtp.",
        )
    if found not in ("layer", *PREDICTION_HEADS):
        raise refused(
            f"The prediction head of {name_of(folder)!r} is of the type {found!r}, which this version cannot run; it "
            f"runs {', '.join(PREDICTION_HEADS)}: start without it.",
        )
    return kind


def open_head(
    folder: Path,
    kind: HeadKind,
    model: nn.Module,
    vocabulary: int,
    plan: DevicePlan,
    kernel_threads: int | None,
) -> DraftHead:
    """A head with its weights, bound to the model that it drafts for, which has so many tokens in its vocabulary.
    Raises `ServerError("load_failed")` for one that was made for another."""
    head = _load(folder, kind, model, vocabulary)
    _place(head, plan, kernel_threads)
    try:
        if hasattr(model, "embed"):  # the kernels' decoder, whose weights are not MLX's
            head.share_parts(model.embed, model.lm_head)
        else:
            head.share(inner_of(model))
    except AttributeError as error:
        raise refused(
            f"The draft head {name_of(folder)!r} shares embeddings and projection with a model of another architecture "
            f"than this one ({error}): choose the head of this very model."
        ) from error
    head.own_bytes = _own_bytes(head, model)
    return head


def open_assistant(folder: Path, model: nn.Module, vocabulary: int, plan: DevicePlan) -> Assistant:
    """An assistant with its weights, bound to the model that it drafts for, which has so many tokens in its vocabulary.
    Raises `ServerError("load_failed")` for one that was made for another."""
    inner = _read(folder, "mtp")
    text = inner.config.text_config
    _check_pair(folder, model, inner.config.backbone_hidden_size, text.vocab_size, vocabulary)
    embeddings = inner.model.embed_tokens
    if isinstance(embeddings, nn.QuantizedEmbedding):
        # Its projection picks rows out of these.
        inner.model.embed_tokens = dequantize_model(nn.Sequential(embeddings)).layers[0]
    cast_weights(inner, plan)
    mx.eval(inner.parameters())
    whole = inner_of(model)
    try:
        assistant = Assistant(inner, whole, _layer_types(whole))
        caches = computed_prompt(model, TRIED)
        state = mx.zeros((1, 1, inner.config.backbone_hidden_size))
        mx.eval(assistant.draft(0, state, caches, len(TRIED), 1))
    except (AttributeError, KeyError, ValueError) as error:
        raise refused(
            f"The assistant {name_of(folder)!r} cannot attend to what this model keeps ({type(error).__name__}: "
            f"{error}): choose the assistant of this very model."
        ) from error
    assistant.own_bytes = _own_bytes(assistant, model)
    return assistant


def _layer_types(model: nn.Module) -> list[str]:
    """The types of a model's layers. Raises `AttributeError` for one that does not tell."""
    text = getattr(model, "language_model", model)
    found: list[str] = (getattr(text, "args", None) or text.config).layer_types
    return found


def _load(folder: Path, kind: HeadKind, model: nn.Module, vocabulary: int) -> DraftHead:
    """The head that `open_head` gives, not bound to the model yet, none of its weights evaluated."""
    if kind == "layer":
        with _usable(folder):
            return layers.open_layer_head(folder, _configuration(folder))
    inner = _read(folder, kind)
    match kind:
        case "eagle3":
            _check_pair(folder, model, inner.target_hidden_size, inner.target_vocab_size, vocabulary)
            _check_words(folder, inner)
            return Eagle3Head(inner)
        case "mtp":
            text = inner.config.text_config
            # Those of Qwen 3.5 leave out a scaling of positions, as their model's class does.
            if {hasattr(each, "_inv_freq") for _, _, each in rotary_modules(inner)} == {True}:
                config = _configuration(folder)
                told = config.get("text_config") or config
                with _usable(folder):
                    complete(inner, told, lambda _: type(inner)(inner.config))
            _check_pair(folder, model, text.hidden_size, text.vocab_size, vocabulary)
            return PREDICTION_HEADS[inner.config.model_type](inner)
        case "dflash":
            _check_pair(folder, model, inner.config.hidden_size, inner.config.vocab_size, vocabulary)
            from pippin.engines.language.drafters.blocks import BlockHead

            return BlockHead(inner)
        case _:
            assert_never(kind)


def _read(folder: Path, kind: str) -> Any:
    """mlx-vlm's drafter of this kind in a folder, none of its weights evaluated."""
    from mlx_vlm.speculative.drafters import load_drafter

    with _usable(folder), reading_spelled_out():
        return load_drafter(str(folder), kind, lazy=True)[0]


def _own_bytes(head: DraftHead, model: nn.Module) -> int:
    """Bytes of the weights of a bound head, without those that are its model's."""
    arrays = {id(array) for _, array in tree_flatten(model.parameters())}
    modules = {id(module) for _, module in model.named_modules()}
    own: int = sum(array.nbytes for _, array in tree_flatten(head.parameters()) if id(array) not in arrays)
    held = (module for _, module in head.named_modules() if id(module) not in modules)
    return own + sum(int(getattr(module, "weight_bytes", 0)) for module in held)


def _place(head: DraftHead, plan: DevicePlan, kernel_threads: int | None) -> None:
    """Put its weights where the model's lie, and in that form."""
    way = ways.way_of(head) if plan.kernels and kernel_threads is not None else None
    if way is not None and kernel_threads is not None and way.means == "fused operations":
        mx.eval(head.parameters())
        ways.put_on(head, way, kernel_threads, whole=False)
        return
    cast_weights(head, plan)
    mx.eval(head.parameters())
    head.dtype = next(each.dtype for name, each in tree_flatten(head.parameters()) if "norm" in name)


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Raises `ServerError("load_failed")` for what the library cannot read within this context."""
    try:
        yield
    except FAILURES as error:
        text = f"{type(error).__name__}: {str(error)[:300]}"
        raise refused(f"The draft head {name_of(folder)!r} cannot be loaded: {text}") from error


def _check_pair(folder: Path, model: nn.Module, size: int, words: int, vocabulary: int) -> None:
    theirs = hidden_size(model)
    if words != vocabulary or (theirs is not None and size != theirs):
        raise refused(
            f"The draft head {name_of(folder)!r} was made for another model: it starts from states of {size} numbers "
            f"and {words} tokens, and this model has {theirs} and {vocabulary}. Choose the head of this very model."
        )


def _check_words(folder: Path, inner: Any) -> None:
    """Checks the words of an EAGLE-3 head that knows a part of the vocabulary."""
    if inner.d2t is None:
        return
    words = mx.arange(inner.draft_vocab_size) + inner.d2t
    if not 0 <= int(words.min()) <= int(words.max()) < inner.target_vocab_size:
        raise refused(
            f"The draft head {name_of(folder)!r} names a token that the vocabulary does not have: its table d2t is "
            "damaged. Download it again."
        )


def hidden_size(model: nn.Module) -> int | None:
    """Numbers in a model's states, where its configuration tells."""
    inner = inner_of(model)
    for holder in (inner, getattr(inner, "language_model", None)):
        args = getattr(holder, "args", None) or getattr(holder, "config", None)
        for told in (args, getattr(args, "text_config", None)):
            size = told.get("hidden_size") if isinstance(told, dict) else getattr(told, "hidden_size", None)
            if isinstance(size, int):
                return size
    return None


def _check_library() -> None:
    """Raises `ServerError("load_failed")` where mlx-vlm, whose heads these are, is not installed."""
    if importlib.util.find_spec("mlx_vlm") is None:
        raise refused(
            "Draft heads are mlx-vlm's, and a smaller model of the same vocabulary drafts without it: "
            f"{install_command('vision')}",
        )
