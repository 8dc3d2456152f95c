"""The files of a folder against each other, and values in them that no publisher of a trained model chooses."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

import yaml
from transformers import CONFIG_MAPPING, PretrainedConfig

from pippin.core.decoding import from_json
from pippin.core.published import find_text, object_in, real, sentence_file, table, whole
from pippin.core.verification import Finding
from pippin.engines.language.configuration import BASES, fields_of, rotary_tables
from pippin.engines.language.upstream.library import get_classes
from pippin.engines.language.upstream.stored import TIED
from pippin.engines.verify.findings import data, finding
from pippin.engines.verify.folder import Folder, Json

LAYER: Final = re.compile(r"^(?P<stack>.*?(?:layers?|\bh|blocks))\.(?P<number>\d+)\.")
LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
COMPUTES: Final = frozenset(
    "alibi attention_bias attention_multiplier attn_bias attn_logit_softcapping embedding_multiplier "
    "final_logit_softcapping hidden_act hidden_activation logit_scale logits_scaling mlp_bias no_rope_layers "
    "partial_rotary_factor query_pre_attn_scalar residual_multiplier".split()
)
"""Fields that change what a model computes."""
ROWS_MORE: Final = {"mllama": 8}
"""Rows of an embedding beyond the vocabulary, by architecture: tokens of pictures, which are never drawn."""
ALIKE: Final = 0.9  # of two names, by difflib, of which one may be the other misspelt
PARTIAL: Final = "partial_rotary_factor"
BYTES: Final = ("I8", "F8_E4M3", "F8_E5M2")
SCALES: Final = ("_scale", "_scale_inv", "_scales")
REAL: Final = 256
"""The width of the smallest models that are trained to be used. Those of tests have windows of a few tokens."""
DRAWN: Final = ("temperature", "top_p", "min_p", "typical_p")
"""Fields that nothing reads where no token is drawn."""
OFF: Final = ("no_repeat_ngram_size", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
"""Fields of which 0 or -1 stands for none."""


def check(folder: Folder, kind: str) -> Iterator[Finding]:
    """Compare the configurations, the index and the headers of a model of this kind."""
    yield from _shards(folder)
    yield from _rope(folder)
    yield from _quantisation(folder)
    yield from _pictures(folder)
    yield from _modules(folder)
    yield from check_values(folder)
    if kind in ("language", "embeddings", "reranking"):
        yield from _layers(folder)
        yield from _rows(folder)
    if kind == "language":
        yield from _templates(folder)
        yield from _head(folder)
        yield from _unread(folder)


def compare(folder: Folder, other: Folder) -> Iterator[Finding]:
    """Compare what mlx-lm reads with the configuration of the model before it was quantised."""
    both = sorted(arguments_of(folder) & folder.text.keys() & other.text.keys())
    pairs = [(name, folder.text[name], other.text[name]) for name in both]
    if unlike := [f"{name} = {one} and not {another}" for name, one, another in pairs if one != another]:
        yield finding("other-config", fields=unlike)


def arguments_of(folder: Folder) -> set[str]:
    """The fields that mlx-lm reads for the architecture; none for one that it does not know."""
    try:
        return {each.name for each in dataclasses.fields(get_classes(folder.config)[1])}
    except (ValueError, KeyError):
        return set()


def _shards(folder: Folder) -> Iterator[Finding]:
    yield from (
        finding("damaged-shard", file=file) for file, header in folder.headers.items() if header is None
    )
    held = Counter(name for header in folder.headers.values() if header is not None for name in header.arrays)
    twice = [name for name, count in held.items() if count > 1]
    if twice:
        yield finding("tensor-twice", count=len(twice), name=twice[0])
    if folder.index is None:
        return
    stray = sorted(set(folder.headers) - set(folder.index.values()))
    if stray:
        yield finding("stray-shard", files=stray)
    missing = [name for name in folder.index if name not in folder.tensors]
    once = folder.tensors.keys() & folder.index.keys() - {*twice}
    elsewhere = sorted(name for name in once if folder.tensors[name][0] != folder.index[name])
    if wrong := missing or elsewhere:
        yield finding("index-mismatch", None if missing else "warning", count=len(wrong), name=wrong[0])


def _rope(folder: Folder) -> Iterator[Finding]:
    config = folder.text
    new, old = table(config.get("rope_parameters")), table(config.get("rope_scaling"))
    old_type = old.get("rope_type", old.get("type"))
    pairs = [("type", old.get("type"), old.get("rope_type"))]
    for kind, own in {"full_attention": new, **new}.items():
        settings = table(own)
        pairs += [(name, config.get(name), settings.get("rope_theta")) for name in BASES.get(kind, ())]
        # The older spelling scales layers that see the whole text.
        if kind in ("full_attention", "main"):
            pairs += [
                ("factor", old.get("factor"), settings.get("factor")),
                ("rope_type", old_type, settings.get("rope_type", settings.get("type"))),
                (PARTIAL, config.get(PARTIAL), settings.get(PARTIAL)),
            ]
    for name, one, other in pairs:
        if one is not None and other is not None and one != other:
            yield finding("rope-disagrees", field=name, one=one, other=other)


def _quantisation(folder: Folder) -> Iterator[Finding]:
    settings = table(folder.config.get("quantization")) or table(folder.config.get("quantization_config"))
    packed = [name.removesuffix(".scales") for name in folder.tensors if name.endswith(".scales")]
    if {"bits", "group_size"} <= settings.keys() and "quant_method" not in settings and not packed:
        yield finding("quantisation-absent", bits=settings["bits"])
    wrong = [name for name in packed if not settings or not _fits(folder, name, settings)]
    if wrong:
        yield finding("quantisation-differs", count=len(wrong), all=len(packed), name=wrong[0])
    matrices = [
        name for name, (_, each) in folder.tensors.items() if each.dtype in BYTES and len(each.shape) > 1
    ]
    raw = [name for name in matrices if not any(f"{name}{each}" in folder.tensors for each in SCALES)]
    if raw:
        yield finding("raw-bytes", count=len(raw), name=raw[0])


def _fits(folder: Folder, name: str, settings: dict[str, Any]) -> bool:
    """Whether a packed matrix has the bits and groups that the configuration says of it."""
    own = settings.get(name, settings)
    if f"{name}.weight" not in folder.tensors or not isinstance(own, dict):
        return True
    words = folder.tensors[f"{name}.weight"][1].shape[-1]
    groups = folder.tensors[f"{name}.scales"][1].shape[-1]
    return bool(words * 32 == groups * own.get("bits", 0) * own.get("group_size", 0))


def _pictures(folder: Folder) -> Iterator[Finding]:
    """How pictures become numbers. Published spreads are no larger than their means, but where both change nothing."""
    processor = object_in(folder.path / "processor_config.json").get("image_processor")
    for settings in (object_in(folder.path / "preprocessor_config.json"), table(processor)):
        mean, spread = settings.get("image_mean") or (), settings.get("image_std") or ()
        with suppress(TypeError):  # for what are no numbers
            if any(mean) and sum(spread) > sum(mean):
                yield finding("picture-numbers", mean=mean, spread=spread)


def _modules(folder: Folder) -> Iterator[Finding]:
    """The modules of sentence-transformers that say in a file how texts become vectors."""
    file = folder.path / "modules.json"
    named = from_json(file.read_bytes(), list[dict[str, Any]]) if file.is_file() else []
    for module in named:
        path = str(module.get("path"))
        if str(module.get("type")).endswith("Pooling") and not (folder.path / path / "config.json").is_file():
            yield finding("module-missing", file=f"{path}/config.json")


def _templates(folder: Folder) -> Iterator[Finding]:
    """The two places of a chat template, of which the file counts, as in transformers."""
    own, other = find_text(folder.path / "chat_template.jinja"), folder.tokenizer.get("chat_template")
    if own and isinstance(other, str) and own.split() != other.split():
        yield finding("template-twice")


def _layers(folder: Folder) -> Iterator[Finding]:
    found = {match.group(0) for name in folder.tensors if "mtp" not in name and (match := LAYER.match(name))}
    count = next((folder.text[name] for name in LAYER_COUNTS if isinstance(folder.text.get(name), int)), None)
    # ALBERT's layers share their weights.
    whole = not {"vision_config", "num_hidden_groups"} & folder.config.keys()
    if found and count is not None and whole:
        drafts = folder.text.get("num_nextn_predict_layers") or 0
        if not count <= len(found) <= count + drafts:
            yield finding("layers-differ", said=count, held=len(found))
    lora = [name for name in folder.tensors if re.search(r"lora_[abAB]\b|\.base_layer\.", name)]
    if lora:
        yield finding("adapter-left", count=len(lora), name=lora[0])


def _rows(folder: Folder) -> Iterator[Finding]:
    """The rows of the embedding."""
    said = folder.field("vocab_size")
    more = ROWS_MORE.get(str(folder.config.get("model_type")), 0)
    if isinstance(said, int) and folder.rows is not None and said + more != folder.rows:
        yield finding("vocabulary-rows", said=said, rows=folder.rows)


def _head(folder: Folder) -> Iterator[Finding]:
    heads = any(re.search(r"head\b|embed_out|(?:^|\.)output\.weight$", name) for name in folder.tensors)
    usual = fields_of(folder.config).defaults.get(TIED)
    tied = {folder.config.get(TIED, usual), folder.text.get(TIED)}
    # Where the whole and its text model disagree, what is stored decides.
    if False in tied and True not in tied and folder.tensors and not heads:
        yield finding("head-missing")


def _unread(folder: Folder) -> Iterator[Finding]:
    """Fields that neither mlx-lm nor transformers know, and those that change what is computed, are not read, and have
    another value than most models of the architecture."""
    kind, read = folder.config.get("model_type"), arguments_of(folder)
    if folder.text is not folder.config or not read:
        return
    # Of these the library reads some elsewhere; rotary settings, sizes and ids have checks of their own.
    read |= {"quantization", "auto_map", "dtype", "torch_dtype", "vocab_size", *PretrainedConfig().to_dict()}
    usual = CONFIG_MAPPING[kind]().to_dict() if kind in CONFIG_MAPPING else {}
    known = {*read, *usual, "rope_theta", "rope_scaling", "rope_parameters"}
    for name in sorted(folder.config.keys() - known):
        for meant in get_close_matches(name, known - folder.config.keys(), 1, ALIKE):
            yield finding("field-misspelt", name=name, meant=meant)
    unread = {
        name: value
        for name, value in folder.config.items()
        if name not in read
        and not name.startswith(("rope_", "quantization_"))
        and not name.endswith("_token_id")
        if value not in (None, False, 0, 1, [], {}, "") and usual.get(name) != value
    }
    if grave := [f"{name} = {value}" for name, value in unread.items() if name in COMPUTES]:
        yield finding("field-unread", fields=grave, type=kind)
    elif unknown := sorted(unread.keys() - usual.keys()):
        yield finding("field-unread", "note", fields=unknown, type=kind)


def check_values(folder: Folder) -> Iterator[Finding]:
    """Hold the numbers of a model that may have been trained against what publishers choose."""
    stops = folder.generation.get("stop_strings") or ()
    for stop in (stops,) if isinstance(stops, str) else stops:
        if stop in data("sample.txt"):
            yield finding("stop-is-text", stop=stop)
    if (whole(folder.field("hidden_size")) or 0) < REAL:
        return
    for name, fields in yaml.safe_load(data("values.yaml")).items():
        file = sentence_file(folder.path) if name.startswith("sentence") else name
        said = object_in(folder.path / file)
        for part in _parts(said | folder.text if name == "config.json" else said):
            for field, (least, most) in fields.items():
                value = real(part.get(field))
                if value is not None and not least <= value <= most and not _off(field, value, said):
                    yield finding(
                        "value-unlikely", file=file, field=field, value=part[field], least=least, most=most
                    )


def _parts(said: Json) -> list[Json]:
    """A file's fields, and those of its rotary settings, which may repeat them."""
    tables = [*rotary_tables(said).values()]
    return [
        said,
        *({name: value for name, value in each.items() if said.get(name) != value} for each in tables),
    ]


def _off(field: str, value: float, said: Json) -> bool:
    """Whether a value says that nothing is done, or nothing reads it."""
    draws = said.get("do_sample")
    # A temperature of zero alone asks for no draws.
    unread = field in DRAWN and (draws is False or (field == "temperature" and value == 0 and draws is None))
    return unread or (value in (0, -1) and field in OFF)
