"""Tiny random checkpoints of any family of mlx-vlm, made from its own configuration classes.

Every size in the defaults of a family's configuration is brought down by its name (`SIZES`), and what a family needs
beyond that is in `FAMILIES`. Special tokens are those that its package spells.
"""

import dataclasses
import functools
import importlib
import inspect
import json
import re
import shutil
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Json = dict[str, Any]

WIDTH = 64
LARGEST = 100_000_000  # bytes of weights, before any is made
SIZES: dict[str, int] = {
    **dict.fromkeys(
        (
            *(
                "hidden_size",
                "embed_dim",
                "dim",
                "d_model",
                "width",
                "n_embd",
                "mm_hidden_size",
                "text_hidden_size",
            ),
            *("out_hidden_size", "projection_dim", "vision_hidden_size", "llm_hidden_size", "embedding_size"),
            *("hidden_dim", "feat_dim", "n_embed", "output_dim", "input_dim", "vision_output_dim", "out_dim"),
            *("projector_hidden_size", "audio_hidden_size", "enc_dim", "vision_output_size", "proj_out_dim"),
        ),
        WIDTH,
    ),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "depth", "layers", "num_layers", "n_layers", "n_layer", "encoder_layers"),
            *("decoder_layers", "num_global_layers", "vt_num_hidden_layers", "enc_n_layers", "dec_n_layers"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "num_heads", "heads", "n_heads", "n_head", "encoder_attention_heads"),
            *("decoder_attention_heads", "attention_heads", "vt_num_attention_heads", "num_key_value_heads"),
            *("n_kv_heads", "attention_num_heads", "enc_n_heads", "dec_n_heads"),
        ),
        4,
    ),
    **dict.fromkeys(
        (
            *("intermediate_size", "mlp_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ff_dim"),
            *("mlp_hidden_size", "vt_intermediate_size", "projector_intermediate_size", "enc_ff_dim"),
        ),
        96,
    ),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "attention_head_size", "kv_channels"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "n_shared_experts", "moe_k", "n_group", "topk_group"), 1),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    "image_size": 32,
    "img_size": 32,
    "patch_size": 8,
    "spatial_patch_size": 8,
    "max_position_embeddings": 4096,
    "sliding_window": 24,
    "eos_token_id": 256,
    "bos_token_id": 256,
    "pad_token_id": 256,
}
TEXT_PARTS = ("text_config", "language_config", "llm_config", "decoder")
PLACEHOLDERS = ("image_token_index", "image_token_id")
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'audio' %}SOUND{% elif part.type == 'video' %}VIDEO"
    "{% elif part.type == 'text' %}"
    "{{ part.text or part.content }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKER = re.compile(r"<[|/]?[\w|/ :\-.]{2,40}\|?>|\[[A-Z_]{2,12}\]|<｜[\w▁]+｜>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What a family needs beyond its own defaults. Values that are names of tokens become their ids."""

    config: Json = dataclasses.field(default_factory=dict)
    flat: bool = False  # the fields of the text model lie beside its parts, and not in `text_config`
    tokens: tuple[str, ...] = ()
    ids: dict[str, int] = dataclasses.field(default_factory=dict)
    """Of tokens whose ids the package spells as numbers; words without a use fill the vocabulary up to them."""
    mark: str | None = None  # the token that features replace, where it is not all of `image`
    image: str = "<image>"  # what the chat template writes for a picture
    sound: str = ""
    video: str = ""
    template: str | None = TEMPLATE  # None for a model without one
    preprocessor: Json = dataclasses.field(default_factory=dict)
    processor: Json = dataclasses.field(default_factory=dict)
    tokenizer: Json = dataclasses.field(default_factory=dict)
    vocabulary: typing.Callable[[Path], dict[str, int]] | None = None
    """Writes the files of the tokenizer, where it is no `tokenizer.json`, and gives the ids of its tokens."""
    trusted: bool = False  # its processor is code of the checkpoint's own: `trusted_processor.py`
    seed: int = 7
    beside: Callable[[Path], None] | None = None
    """Writes what else lies in the folder."""

    instead: Json = dataclasses.field(default_factory=dict)
    """What the package fixes and no configuration reaches: by its path below `mlx_vlm.models`, what is there instead.
    A class is given arguments, a dict is given keys. Ours and mlx-vlm's answers come from the package so changed."""


def shrink(made: Family, patch: pytest.MonkeyPatch) -> None:
    """Put the family's `instead` into mlx-vlm until the end of the test."""
    for path, value in made.instead.items():
        owner, name = _owner_of(path)
        held = getattr(owner, name)
        match held, value:
            case type(), dict():
                patch.setattr(owner, name, _given(held, value))
            case dict(), dict():
                patch.setattr(owner, name, {**held, **value})
            case _:
                patch.setattr(owner, name, value)


def _owner_of(path: str) -> tuple[Any, str]:
    """The module or class that holds what the path names, and the last name."""
    *parts, name = path.split(".")
    modules = [part for part in parts if part.islower() and not part.startswith("__")]
    owner: Any = importlib.import_module(".".join(["mlx_vlm.models", *modules]))
    for part in parts[len(modules) :]:
        owner = getattr(owner, part)
    return owner, name


def _given(kind: Any, arguments: Json) -> Any:
    return lambda *others, **named: kind(*others, **{**named, **arguments})


def write(name: str, made: Family, folder: Path) -> Path:
    """Write a random float32 checkpoint of the family into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    package = importlib.import_module(f"mlx_vlm.models.{name}")
    ids = (
        write_tokenizer(folder, made, spelled(package))
        if made.vocabulary is None
        else made.vocabulary(folder)
    )
    if made.vocabulary is not None and made.template is not None:
        (folder / "chat_template.jinja").write_text(spelling(made.template, made))
    fields = inspect.signature(package.ModelConfig).parameters
    marks = {each: ids[made.mark or made.image] for each in PLACEHOLDERS if each in fields}
    config = merged({**shrunk(package), **marks}, numbered(made.config, ids))
    config = {**config, "model_type": made.config.get("model_type", name)}
    config = {key: value for key, value in config.items() if value is not None}
    if made.flat:
        config = {**config.pop("text_config"), **config}
    thinker = config.get("thinker_config", {})
    for part in (config, thinker.get("text_config"), *(config.get(name) for name in TEXT_PARTS)):
        if isinstance(part, dict):
            part["vocab_size"] = len(ids)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(numbered(made.preprocessor, ids)))
    if made.trusted:
        shutil.copy(Path(__file__).parent / "tiny" / "trusted_processor.py", folder)
        named = {"auto_map": {"AutoProcessor": "trusted_processor.TinyProcessor"}}
        made = dataclasses.replace(
            made, processor={"processor_class": "TinyProcessor", **named, **made.processor}
        )
    if made.processor:
        (folder / "processor_config.json").write_text(json.dumps(numbered(made.processor, ids)))
    write_weights(package, folder, config, made.seed)
    if made.beside is not None:
        made.beside(folder)
    return folder


def spelled(package: Any) -> list[str]:
    """The special tokens that the source of a family spells."""
    folder = Path(package.__file__).parent
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.py")):
        found |= dict.fromkeys(MARKER.findall(path.read_text("utf-8")))
    return [each for each in found if each.count("<") <= 1 and len(each) < 40]


def shrunk(package: Any) -> Json:
    """The configuration of a family as its classes have it, with small sizes."""
    config = fields_of(package.ModelConfig)
    for name in dir(package):
        kind = getattr(package, name)
        if inspect.isclass(kind) and name.endswith("Config") and name != "ModelConfig":
            part = name.removesuffix("Config").lower() + "_config"
            if part in inspect.signature(package.ModelConfig).parameters:
                config[part] = {**fields_of(kind), **named(package, part)}
    return config


def named(package: Any, part: str) -> Json:
    """The model type that the family's own code asks of a part's configuration."""
    file = {"text_config": "language", "vision_config": "vision", "audio_config": "audio"}.get(part)
    path = Path(package.__file__).parent / f"{file}.py"
    source = path.read_text("utf-8") if path.exists() else ""
    found = re.search(r"model_type\s*(?:not in|in|!=|==)\s*[\[({]?\s*\"([\w\-.]+)\"", source)
    return {} if found is None else {"model_type": found.group(1)}


def fields_of(kind: Any) -> Json:
    found: Json = {}
    if not dataclasses.is_dataclass(kind):
        return found
    for field in dataclasses.fields(kind):
        default = field.default
        if field.name in SIZES and (isinstance(default, int) or default in (None, dataclasses.MISSING)):
            found[field.name] = SIZES[field.name]
        elif default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            found[field.name] = guessed(field)
    return {name: value for name, value in found.items() if value is not None}


def guessed(field: Any) -> Any:
    """A value for a field without a default."""
    kind = str(field.type)
    if "Config" in kind:
        return None
    if "model_type" in field.name:
        return "llama"
    if "bool" in kind:
        return False
    if "float" in kind:
        return 1e-5 if "eps" in field.name else 10000.0
    if "int" in kind:
        return SIZES.get(field.name, 2)
    return None


def merged(first: Json, second: Json) -> Json:
    found = dict(first)
    for key, value in second.items():
        held = found.get(key)
        found[key] = merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return found


def numbered(value: Any, ids: dict[str, int]) -> Any:
    match value:
        case str():
            return ids.get(value, value)
        case dict():
            return {key: numbered(held, ids) for key, held in value.items()}
        case _:
            return value


def write_weights(package: Any, folder: Path, config: Json, seed: int) -> None:
    from mlx_vlm.utils import update_module_configs

    copied = json.loads(json.dumps(config))
    copied.setdefault("text_config", {})
    mx.random.seed(seed)
    settings = package.ModelConfig.from_dict(copied)
    settings = update_module_configs(
        settings, package, copied, ["text", "vision", "perceiver", "projector", "audio"]
    )
    model = package.Model(settings)
    size = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert size < LARGEST, f"{size / 1e6:.0f} MB: a size in the configuration is not small"
    spread = [
        (name, _spread(name, array))
        for name, array in tree_flatten(model.parameters())
        if mx.issubdtype(array.dtype, mx.floating)
    ]
    model.update(tree_unflatten([(name, array.astype(mx.float32)) for name, array in spread]))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _spread(name: str, array: mx.array) -> mx.array:
    """Weights far enough from those that a class begins with. Gates that are closed at first would hide a picture."""
    if array.ndim > 1:
        return array + 0.08 * mx.random.normal(array.shape)
    return array + 0.5 if name.endswith("gate") else array


def spelling(template: str, made: Family) -> str:
    """The chat template with the family's markers of media."""
    written = (("IMAGE", made.image), ("SOUND", made.sound), ("VIDEO", made.video))
    return functools.reduce(lambda text, each: text.replace(*each), written, template)


def write_tokenizer(folder: Path, made: Family, found: list[str]) -> dict[str, int]:
    """Token i is byte i; the special tokens follow. Gives the ids of all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    if made.ids:
        named_by = {index: token for token, index in made.ids.items()}
        vocabulary |= {
            named_by.get(index, f"unused{index}"): index for index in range(256, max(made.ids.values()) + 1)
        }
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    marks = [made.image] if made.mark is None else [made.mark]
    backend.add_special_tokens(list(dict.fromkeys(["<|end|>", *made.ids, *made.tokens, *marks, *found])))
    backend.save(str(folder / "tokenizer.json"))
    settings: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "bos_token": "<|end|>",
        "pad_token": "<|end|>",
        "unk_token": "<|end|>",
        **made.tokenizer,
    }
    if made.template is not None:
        settings["chat_template"] = spelling(made.template, made)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return typing.cast(dict[str, int], backend.get_vocab(with_added_tokens=True))
