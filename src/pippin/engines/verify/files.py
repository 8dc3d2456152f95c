"""The files of a folder against each other."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from pippin.core.verification import Finding
from pippin.engines.verify.folder import Folder

LAYER: Final = re.compile(r"^(?P<stack>.*?(?:layers|\bh|blocks))\.(?P<number>\d+)\.")
LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
COMPUTES: Final = frozenset(
    "alibi attention_bias attention_multiplier attn_bias attn_logit_softcapping embedding_multiplier "
    "final_logit_softcapping hidden_act hidden_activation logit_scale logits_scaling mlp_bias no_rope_layers "
    "partial_rotary_factor query_pre_attn_scalar residual_multiplier".split()
)
"""Fields that change what a model computes."""
ELSEWHERE: Final = frozenset(
    "quantization quantization_config model_type model_file auto_map text_config rope_theta rope_scaling "
    "rope_parameters vocab_size torch_dtype dtype transformers_version bos_token_id eos_token_id pad_token_id".split()
)
"""Fields that are read in other places than the library's arguments of a model, or have a check of their own."""
PULL: Final = "pippin pull ORG/NAME"
EDIT: Final = "edit config.json as the publisher's repository has it"


def check(folder: Folder, kind: str) -> Iterator[Finding]:
    """Compare the configurations, the index and the headers of a model of this kind."""
    yield from _shards(folder)
    yield from _rope(folder)
    yield from _quantisation(folder)
    if kind == "language":
        yield from _layers(folder)
        yield from _vocabulary(folder)
        yield from _head(folder)
        yield from _unread(folder)


def _shards(folder: Folder) -> Iterator[Finding]:
    for file, header in folder.headers.items():
        if header is None:
            yield fault("damaged-shard", f"{file} is cut off or damaged.", "The model can't be loaded.", PULL)
    twice = Counter(
        name for header in folder.headers.values() if header is not None for name in header.arrays
    )
    doubled = [name for name, count in twice.items() if count > 1]
    if doubled:
        yield fault(
            "tensor-twice",
            f"{len(doubled)} tensors are in two files, such as {doubled[0]}.",
            "Which of them is used depends on the program that reads them.",
            "move the file that is not the publisher's out of the folder",
        )
    if folder.index is None:
        return
    stray = sorted(set(folder.headers) - set(folder.index.values()))
    if stray:
        yield warning(
            "stray-shard",
            f"{', '.join(stray)} is beside the files that the index names.",
            "A program that reads all files mixes it in.",
            f"mv {stray[0]} elsewhere",
        )
    missing = [name for name in folder.index if name not in folder.tensors]
    if missing:
        yield fault(
            "index-mismatch",
            f"{len(missing)} tensors of the index are in no file, such as {missing[0]}.",
            "The model can't be loaded, or is incomplete.",
            PULL,
        )
    elsewhere = [
        name
        for name, file in folder.index.items()
        if name in folder.tensors and folder.tensors[name][0] != file
    ]
    if elsewhere and not doubled:
        yield warning(
            "index-mismatch",
            f"{len(elsewhere)} tensors are in another file than the index says, such as {elsewhere[0]}.",
            "Programs that go by the index fail.",
            "delete the index; the files hold every tensor",
        )


def _rope(folder: Folder) -> Iterator[Finding]:
    config = folder.text
    new, old = _table(config.get("rope_parameters")), _table(config.get("rope_scaling"))
    new = _table(new.get("full_attention")) or new
    pairs = {
        "rope_theta": (config.get("rope_theta"), new.get("rope_theta")),
        "factor": (old.get("factor"), new.get("factor")),
        "rope_type": (_rope_type(old), _rope_type(new)),
        "type": (old.get("type"), old.get("rope_type")),
    }
    for name, (one, other) in pairs.items():
        if one is not None and other is not None and one != other:
            yield fault(
                "rope-disagrees",
                f"config.json says two things of rotary positions: {name} is {one} and {other}.",
                "With the wrong one the model loses its way in texts; programs differ in which they take.",
                EDIT,
            )


def _rope_type(table: dict[str, Any]) -> Any:
    return table.get("rope_type", table.get("type"))


def _quantisation(folder: Folder) -> Iterator[Finding]:
    settings = _table(folder.config.get("quantization")) or _table(folder.config.get("quantization_config"))
    packed = [name.removesuffix(".scales") for name in folder.tensors if name.endswith(".scales")]
    if "bits" in settings and "group_size" in settings and "quant_method" not in settings and not packed:
        yield fault(
            "quantisation-absent",
            f"config.json says {settings['bits']} bits, and no tensor is packed.",
            "Programs that trust the field can't load the model.",
            EDIT,
        )
    wrong = [name for name in packed if not _fits(folder, name, settings)]
    if packed and not settings:
        wrong = packed
    if wrong:
        yield fault(
            "quantisation-differs",
            f"{len(wrong)} of {len(packed)} packed matrices have other bits or groups than config.json says, such as "
            f"{wrong[0]}.",
            "They are unpacked to noise, or the model can't be loaded.",
            EDIT,
        )
    for name, (_, array) in folder.tensors.items():
        raw = array.dtype in ("I8", "F8_E4M3", "F8_E5M2") and len(array.shape) > 1
        if raw and not any(f"{name}{each}" in folder.tensors for each in ("_scale", "_scale_inv", "_scales")):
            yield fault(
                "raw-bytes",
                f"{name} is {array.dtype} and has no scales.",
                "Its bytes would be read as numbers.",
                "pippin convert ORG/NAME",
            )
            return


def _fits(folder: Folder, name: str, settings: dict[str, Any]) -> bool:
    """Whether a packed matrix has the bits and groups that the configuration says of it."""
    own = settings.get(name, settings)
    if f"{name}.weight" not in folder.tensors or not isinstance(own, dict):
        return True
    words = folder.tensors[f"{name}.weight"][1].shape[-1]
    groups = folder.tensors[f"{name}.scales"][1].shape[-1]
    return bool(words * 32 == groups * own.get("bits", 0) * own.get("group_size", 0))


def _layers(folder: Folder) -> Iterator[Finding]:
    found = {match.group(0) for name in folder.tensors if "mtp" not in name and (match := LAYER.match(name))}
    count = next((folder.text[name] for name in LAYER_COUNTS if isinstance(folder.text.get(name), int)), None)
    if not found or count is None or "vision_config" in folder.config:
        return
    drafts = folder.text.get("num_nextn_predict_layers") or 0
    if not count <= len(found) <= count + drafts:
        yield fault(
            "layers-differ",
            f"config.json says {count} layers, and the files hold {len(found)}.",
            "Layers are missing, or are left out without a word.",
            EDIT,
        )
    lora = [name for name in folder.tensors if re.search(r"lora_[ab]\b|lora_(?:A|B)|\.base_layer\.", name)]
    if lora:
        yield fault(
            "adapter-left",
            f"{len(lora)} tensors are of an adapter that was not merged, such as {lora[0]}.",
            "The model answers without it, or can't be loaded.",
            "merge the adapter, or serve it: pippin serve MODEL --adapter-path FOLDER",
        )


def _vocabulary(folder: Folder) -> Iterator[Finding]:
    said, rows = folder.field("vocab_size"), folder.rows
    if isinstance(said, int) and rows is not None and said != rows:
        yield fault(
            "vocabulary-rows",
            f"config.json says {said} tokens, and the embedding has {rows} rows.",
            "The model can't be loaded, or tokens have no embedding.",
            EDIT,
        )


def _head(folder: Folder) -> Iterator[Finding]:
    heads = [name for name in folder.tensors if re.search(r"head\b|embed_out|(?:^|\.)output\.weight$", name)]
    if folder.field("tie_word_embeddings") is False and folder.tensors and not heads:
        yield fault(
            "head-missing",
            "config.json says that the head is a matrix of its own, and no file has it.",
            "The model can't be loaded, or takes its embedding for the head.",
            PULL,
        )


def _unread(folder: Folder) -> Iterator[Finding]:
    """Fields that mlx-lm's arguments of the model lack, and whose value is not the architecture's usual one."""
    from mlx_lm.utils import _get_classes
    from transformers import CONFIG_MAPPING, PretrainedConfig

    type_ = folder.config.get("model_type")
    if folder.text is not folder.config or not isinstance(type_, str):
        return
    try:
        _, arguments = _get_classes(folder.config)
        usual = CONFIG_MAPPING[type_]().to_dict() if type_ in CONFIG_MAPPING else {}
    except Exception:  # an architecture that neither knows, or a configuration that transformers refuses
        return
    read = (
        {each.name for each in dataclasses.fields(arguments)} | ELSEWHERE | set(PretrainedConfig().to_dict())
    )
    unread = {
        name: value
        for name, value in folder.config.items()
        if name not in read and value not in (None, False, 0, 1, [], {}, "") and usual.get(name) != value
    }
    grave = [f"{name} = {value}" for name, value in unread.items() if name in COMPUTES]
    if grave:
        yield warning(
            "field-unread",
            f"config.json has {', '.join(grave)}, which the installed mlx-lm does not read for {type_}.",
            "The model may compute something else than its publisher's.",
            "pip install -U mlx-lm",
        )
    rest = sorted(unread.keys() - COMPUTES)
    if rest:
        yield Finding(
            code="field-unread",
            severity="note",
            text=f"config.json has fields that mlx-lm does not read for {type_}: {', '.join(rest[:12])}.",
        )


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def fault(code: str, text: str, meaning: str, command: str = "") -> Finding:
    return Finding(code=code, severity="fault", text=text, meaning=meaning, command=command)


def warning(code: str, text: str, meaning: str, command: str = "") -> Finding:
    return Finding(code=code, severity="warning", text=text, meaning=meaning, command=command)


def note(code: str, text: str, meaning: str = "", command: str = "") -> Finding:
    return Finding(code=code, severity="note", text=text, meaning=meaning, command=command)
