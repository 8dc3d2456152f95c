"""What clients are told of an error that a library raises while it loads a model: the reason, and a way out."""

import re
from pathlib import Path
from typing import Any, Final

from pippin.core.models import ModelInfo
from pippin.core.published import object_in, table
from pippin.engines.language.configuration import head_size, unread
from pippin.engines.language.model.relatives import PACKAGES

UNMATCHED: Final = re.compile(r"(Received|Missing) (\d+) parameters[^:]*:\s*(.*?)\.?\s*", re.DOTALL)
"""The error of MLX's `load_weights` for tensors that a model does not have, or that it lacks."""

UNKNOWN: Final = re.compile(r"Model type (\S+) (?:is )?not supported")
"""The libraries' error for the type of a model, or of a part of one."""

LACKING: Final = re.compile(r"__init__\(\) missing \d+ required positional arguments?: (.*)")
"""The error of a class of a configuration."""

OTHER_SHAPE: Final = "Expected shape"
"""What MLX says of a tensor that is not as large as its module's."""

NAMED: Final = 4  # of such tensors

WRITES: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""How the names of transformers' classes end that write text."""

WRAPPERS: Final = {
    "module.": "model.module.save_pretrained(FOLDER)",
    "_orig_mod.": "model._orig_mod.save_pretrained(FOLDER)",
    "base_model.model.": "model.merge_and_unload().save_pretrained(FOLDER)",
    ".lora_": "model.merge_and_unload().save_pretrained(FOLDER)",
}
"""What the names of tensors have of DataParallel's, torch.compile's and PEFT's wrappers, and how a model is saved
without it."""


def explain(info: ModelInfo, error: BaseException, library: str) -> str:
    """What clients are told of an error that the library raised while it loaded a model."""
    text = str(error).replace(f"{info.path}/", "")
    config = object_in(Path(info.path or "") / "config.json")
    if (unknown := UNKNOWN.search(text)) is not None:
        return _unknown(info, config, unknown[1], library)
    if (found := UNMATCHED.fullmatch(text)) is not None:
        return _unmatched(info, found, library)
    if (lacking := LACKING.search(text)) is not None:
        return (
            f"The config.json of {info.id!r} lacks {lacking[1]}, which the installed {library} needs for the "
            f"architecture {info.architecture!r}: a newer {library} may do without (pip install -U {library})."
        )
    if OTHER_SHAPE in text and (size := _other_head(config)) is not None:
        return f"The model {info.id!r} cannot be loaded: {unread(f'head_dim {size}')}."
    if isinstance(error, SystemExit):
        return f"For {info.architecture!r}, {library} needs a package that is not installed here; the log names it."
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    hint = doubtful_fields(Path(info.path or "")) if kind else ""
    return f"The model {info.id!r} cannot be loaded: {kind}{text[:400]}{hint}"


def _other_head(config: dict[str, Any]) -> int | None:
    """The size of heads, where it is told and is not what classes without a field for it take."""
    text = {**config, **table(config.get("text_config"))}
    told, usual = (head_size({**text, **other}) for other in ({}, {"head_dim": None}))
    return None if told == usual else told


def _unknown(info: ModelInfo, config: dict[str, Any], kind: str, library: str) -> str:
    """What is told of an architecture, or that of a part, which no library here knows. One that writes no text is not
    in newer releases either."""
    named = config.get("architectures")
    classes = [str(name) for name in named] if isinstance(named, list) else []
    what, purpose = f"the architecture {kind!r} of {info.id!r}", "chat"
    if config.get("is_encoder_decoder"):
        reason = "it has an encoder and a decoder, and language models here are decoders alone"
    elif any(name.endswith(WRITES) for name in classes) or (info.kind == "language" and not classes):
        library = "mlx-vlm" if {"vision_config", "audio_config"} & config.keys() else library
        newer = f"a newer {library} may know it (pip install -U {library})"
        return f"The installed {library} does not know {what}: {newer}."
    elif info.kind in ("embeddings", "reranking") or any(name.endswith("ForMaskedLM") for name in classes):
        reason = f"its encoders are {', '.join(sorted(PACKAGES))}, and mlx-lm's language models embed too"
        purpose = "embed"
    else:
        reason = f"it is no language model ({', '.join(classes)}) and no kind of model that is known here"
    return f"Pippin does not compute {what}: {reason}. `pippin recommend --for {purpose}` names models that run here."


def _unmatched(info: ModelInfo, found: re.Match[str], library: str) -> str:
    """What is told of tensors that a model does not have, or that it lacks."""
    names, lacks = [name.strip() for name in found[3].split(",")], found[1] == "Missing"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    listed = ", ".join(names[:NAMED]) + more
    what = f"the files lack {listed}" if lacks else f"it does not know {listed}"
    way = f"A newer {library} may know it (pip install -U {library})."
    wrapper = next((part for part in WRAPPERS if any(part in name for name in names)), None)
    if lacks:
        way = f"Fetch them again, or take a newer {library}, which may do without (pip install -U {library})."
    elif wrapper is not None:
        way = f"They were saved in a wrapper for training (`{wrapper}`). Save what is in it: {WRAPPERS[wrapper]}"
    elif "embed_tokens.weight" in names:
        way = "They are of a body without a head, which embeds text: start the server with --model-kind embeddings."
    return f"The weights of {info.id!r} do not match its architecture as the installed {library} has it: {what}. {way}"


def doubtful_fields(folder: Path) -> str:
    """What to say of the fields of a folder's config.json that may be why a library raises: nulls, and lists of layers
    that are all alike, where classes look for one of each type."""
    config = object_in(folder / "config.json")
    parts = [("", config), *((f"{part}.", table(held)) for part, held in config.items())]
    names = [part + name for part, held in parts for name, value in held.items() if _is_doubtful(value)]
    return f" (null or alike for all layers in its config.json: {', '.join(names)})" if names else ""


def _is_doubtful(value: object) -> bool:
    return value is None or (isinstance(value, list) and 1 == len({*map(str, value)}) < len(value))
