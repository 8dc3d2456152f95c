"""What files of adapters change of which layers: those of mlx-lm, mlx-vlm and PEFT."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

import mlx.core as mx
from msgspec import Struct
from msgspec.structs import asdict

from pippin.core.errors import ServerError
from pippin.core.published import object_in, table
from pippin.core.safetensors import find_header

ENDS = ".lora_a", ".lora_b"
"""How mlx-lm names the two matrices of a layer."""

OWN = "adapter_path"
"""The name of the adapter for all requests that name none: the option that gives its folder."""

PEFT = "adapter_model.safetensors"
"""The file of an adapter that PEFT wrote."""


class Change(Struct, frozen=True):
    """What an adapter changes of a layer y = W x + b; of an embedding, W^T is the table. What is None stays."""

    # [in, rank] and [rank, out], with the adapter's scale multiplied into the second; of an embedding `in` are words.
    pair: tuple[mx.array, mx.array] | None = None
    magnitude: mx.array | None = None  # [out]: the norms that the rows of W + (first second)^T get (DoRA)
    shift: mx.array | None = None  # [out], which is added
    bias: mx.array | None = None  # b itself [out]
    whole: mx.array | None = None  # W itself; of an embedding its table
    words: tuple[int, ...] | None = None  # the rows of a table that `whole` has, if not all

    @property
    def given(self) -> dict[str, Any]:
        return {field: each for field, each in asdict(self).items() if each is not None}

    @property
    def rank(self) -> int:
        return 0 if self.pair is None else int(self.pair[0].shape[1])


class Read(Struct, frozen=True):
    """A change, and the layer's name in the adapter's file."""

    name: str
    change: Change
    shared: bool = False  # it is one of the base model's own matrix, which may be embedding and head at once


def is_low_rank(folder: str) -> bool:
    """Whether an adapter is plain LoRA on linear layers, by the headers of its files, or cannot be read. The kernels
    for CPUs can't apply any other, such as one of embeddings, the head or experts."""
    place = Path(folder).expanduser()
    config = object_in(place / "adapter_config.json")
    header = find_header(file_of(place))
    pair = re.compile(r"(.*\.)?layers\..*\.(lora_)?[abAB](\.weight)?")
    return _method(config) == "lora" and all(
        len(array.shape) == 2 and pair.fullmatch(name)
        for name, array in (header.arrays.items() if header is not None else ())
    )


def _method(config: Mapping[str, Any]) -> str:
    return "dora" if config.get("use_dora") else str(config.get("fine_tune_type", "lora"))


def file_of(folder: Path) -> Path:
    """Where an adapter's folder has its weights."""
    peft = folder / PEFT
    return peft if peft.exists() else folder / "adapters.safetensors"


def read_changes(name: str, folder: Path) -> list[Read]:
    """Read an adapter of mlx-lm, mlx-vlm or PEFT. Raises `ServerError("load_failed")`."""
    config = object_in(folder / "adapter_config.json")
    if not config:
        raise refused(name, f"{folder} has no readable adapter_config.json")
    if (method := _method(config)) not in ("lora", "dora"):
        raise refused(name, f"it is of type {method}, and only LoRA and DoRA are supported")
    path = file_of(folder)
    try:
        weights = mx.load(str(path))
        assert isinstance(weights, dict)  # of a safetensors file
    except (OSError, RuntimeError, ValueError) as error:
        raise refused(name, f"{path.name} cannot be read ({error})") from error
    found = _of_peft(name, folder, weights) if path.name == PEFT else _of_mlx(name, config, weights)
    if not found:
        raise refused(name, "it adapts nothing")
    return found


def _of_mlx(name: str, config: dict[str, Any], weights: dict[str, mx.array]) -> list[Read]:
    (first, second), magnitude = ENDS, ".m"
    scale: Any = table(config.get("lora_parameters")).get("scale")
    if "rank" in config and "lora_parameters" not in config:
        # The form of mlx-vlm before it adopted mlx-lm's: `alpha` over `rank` scales the product of A and B.
        rank, alpha = config["rank"], config.get("alpha", 0.1)
        if not isinstance(rank, int) or rank < 1 or not all(map(_is_number, (rank, alpha))):
            raise refused(name, "its adapter_config.json gives no plain rank and alpha")
        first, second, scale = ".A", ".B", alpha / rank
    elif not _is_number(scale):
        raise refused(name, "its adapter_config.json gives no lora_parameters.scale")
    ends = {first: "A", second: "B", **({magnitude: "magnitude"} if _method(config) == "dora" else {})}
    found = []
    for path, parts in _by_layer(name, weights, ends).items():
        if len(parts) != len(ends) or parts["A"].ndim != 2 or parts["B"].ndim != 2:
            raise _no_pair(name, path, parts)
        change = Change((parts["A"], parts["B"] * scale), parts.get("magnitude"))
        found.append(Read(path, change, shared=True))
    return found


MORE_THAN_LAYERS: Final = frozenset({"alora_invocation_tokens", "layer_replication", "target_parameters"})
"""Fields of PEFT's adapter_config.json that change more than single layers. Which layers have changes, the file of
weights says: `target_modules`, `layers_to_transform` and others chose them."""

STORED: Final = {
    "lora_bias": "shift",
    "modules_to_save": "whole",
    "trainable_token_indices": "words",
    "use_dora": "magnitude",
}
"""Fields of PEFT's adapter_config.json that are honoured by what the file of weights has for them (see `PARTS`)."""

OF_TRAINING: Final = frozenset(
    {"corda_config", "eva_config", "loftq_config", "lora_ga_config", "megatron_config", "runtime_config"}
)
"""Of the fields `..._config`, those that tell how pairs were begun or trained."""

STARTS: Final = (None, True, False, "gaussian", "orthogonal", "eva")
"""The values of `init_lora_weights` that leave the base model as it is; others, such as PiSSA's, take the matrices'
first values from it."""


def _check_peft(name: str, folder: Path, config: dict[str, Any], stored: set[str]) -> None:
    """Raises `ServerError` naming a field of a PEFT adapter that can't be honoured."""
    unknown = {field for field in config if field.startswith("use_") or field.endswith("_config")}
    unknown -= STORED.keys() | OF_TRAINING | {"use_rslora"}
    fields = sorted(field for field in MORE_THAN_LAYERS | unknown if config.get(field))
    if config.get("init_lora_weights") not in STARTS:
        fields.append("init_lora_weights")
    if fields:
        given = f"its adapter_config.json sets {', '.join(fields)}"
        raise refused(name, f"{given}, which changes more than single layers{merging(folder)}")
    for field, part in STORED.items():
        if config.get(field) and part not in stored:
            raise refused(name, f"its adapter_config.json sets {field}, and {PEFT} has nothing of it")


def merging(folder: Path) -> str:
    """How an adapter of PEFT becomes part of its base model, as the end of a sentence; empty for others."""
    if not (folder / PEFT).exists():
        return ""
    return (
        "; merge it, if it can be merged, and serve `merged` with the tokenizer files of its base model: "
        f'python -c "from peft import AutoPeftModelForCausalLM as Model; '
        f"Model.from_pretrained('{folder}').merge_and_unload().save_pretrained('merged')\""
    )


PARTS: Final = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "A",
    ".lora_embedding_B": "B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_B.bias": "shift",
    ".token_adapter.trainable_tokens_delta": "words",
    ".base_layer.weight": "base",
    ".base_layer.bias": "bias",
    ".weight": "whole",
    ".bias": "bias",
}
"""What PEFT stores of a layer, by the ends of names; longer ones come first."""


def _of_peft(name: str, folder: Path, weights: dict[str, mx.array]) -> list[Read]:
    config = object_in(folder / "adapter_config.json")
    # Others have arrays of other names, too.
    if (kind := config.get("peft_type") or "LORA") != "LORA":
        raise refused(name, f"its peft_type is {kind}, and only LORA is supported{merging(folder)}")
    named = {key.removeprefix("base_model.model."): value for key, value in weights.items()}
    layers = _by_layer(name, named, PARTS)
    _check_peft(name, folder, config, {part for parts in layers.values() for part in parts})
    rank, alpha, root = config.get("r"), config.get("lora_alpha"), config.get("use_rslora") or False
    ranks, alphas = (config.get(field) or {} for field in ("rank_pattern", "alpha_pattern"))
    plain = {"r": _is_number(rank), "lora_alpha": _is_number(alpha), "use_rslora": isinstance(root, bool)}
    plain |= {"rank_pattern": _are_patterns(ranks), "alpha_pattern": _are_patterns(alphas)}
    plain["modules_to_save"] = isinstance(config.get("modules_to_save"), list | None)
    if wrong := [field for field, known in plain.items() if not known]:
        reason = f"its adapter_config.json has no plain {', '.join(wrong)} (numbers go up to {LARGEST})"
        raise refused(name, reason)
    # Rows of one matrix for two layers are stored once, unless others are trained for each.
    one = sum("words" in parts for parts in layers.values()) == 1
    found = []
    for path, parts in layers.items():
        if "A" in parts or "B" in parts or "magnitude" in parts or "shift" in parts:
            if "A" not in parts or "B" not in parts or parts["A"].ndim != 2 or parts["B"].ndim != 2:
                raise _no_pair(name, path, parts)
            down, up = parts["A"].T, parts["B"].T
            own = _by_pattern(ranks, path, rank)
            if own < 1 or own != down.shape[1]:
                given = f"its adapter_config.json gives {path} the rank (r) {own}"
                raise refused(name, f"{given}, and its matrix has {down.shape[1]}")
            scale = _by_pattern(alphas, path, alpha) / (own**0.5 if root else own)
            shift = parts["shift"] * scale if "shift" in parts else None
            found.append(Read(path, Change((down, up * scale), parts.get("magnitude"), shift)))
        found += _replaced(name, config, path, parts, one)
    return found


def _replaced(
    name: str, config: Mapping[str, Any], path: str, parts: dict[str, mx.array], one: bool
) -> Iterator[Read]:
    """What a file of PEFT has in place of a layer's own arrays; `one`: of one matrix alone it has single rows."""
    if "bias" in parts:
        yield Read(path, Change(bias=parts["bias"]))
    if "base" in parts:
        yield Read(path, Change(whole=parts["base"]), shared=True)
    if "whole" in parts:
        if config.get("fan_in_fan_out") and len({*parts["whole"].shape}) == 1:
            raise refused(
                name, f"with fan_in_fan_out, {path} may be stored the other way around: merge it first"
            )
        # Of what is trained whole, the file has every copy, even of one matrix for two layers.
        copied = bool(config.get("ensure_weight_tying")) or any(
            map(path.endswith, config.get("modules_to_save") or ())
        )
        yield Read(path, Change(whole=parts["whole"]), not copied)
    if "words" in parts:
        words = config.get("trainable_token_indices")
        if isinstance(words, dict):
            words = next((each for key, each in words.items() if path.endswith(key)), None)
        if not _are_words(words) or len(words) != len(parts["words"]):
            raise refused(name, f"its trainable_token_indices are not those of the rows for {path}")
        yield Read(path, Change(whole=parts["words"], words=tuple(words)), one)


def _by_layer(
    name: str, weights: Mapping[str, mx.array], ends: Mapping[str, str]
) -> dict[str, dict[str, mx.array]]:
    """The arrays of a file by the names of layers, and by what they are. Raises `ServerError` for other arrays."""
    found: dict[str, dict[str, mx.array]] = {}
    for key, array in weights.items():
        end = next((end for end in ends if key.endswith(end)), None)
        if end is None:
            raise _no_pair(name, key, {})
        found.setdefault(key.removesuffix(end), {})[ends[end]] = array
    return found


def _no_pair(name: str, path: str, parts: Mapping[str, mx.array]) -> ServerError:
    held = f"{path} ({', '.join(sorted(parts))})" if parts else path
    return refused(name, f"it holds {held}, which is no pair of matrices of a plain linear layer")


LARGEST: Final = 65504
"""The largest number in 16 bits, in which most layers compute: larger scales and ranks are none."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _are_words(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(each, int) and each >= 0 for each in value)


def _are_patterns(value: object) -> bool:
    """Whether this is an object of numbers by regular expressions."""
    try:
        return isinstance(value, dict) and all(
            re.compile(pattern) and _is_number(number) for pattern, number in value.items()
        )
    except re.error:
        return False


def _by_pattern(patterns: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    """The value of the first pattern that is a layer's path or its end, as PEFT reads them."""
    found = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path))
    return next(found, otherwise)


def refused(name: str, reason: str) -> ServerError:
    """The refusal of an adapter, by the name that the operator gave it."""
    label = "adapter_path" if name == OWN else f"adapters.{name}"
    return ServerError("load_failed", f"The adapter {name!r} cannot be served: {reason}.", label)
