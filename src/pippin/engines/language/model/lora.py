"""LoRA adapters of one base model, chosen for each sequence of a batch: low-rank additions to linear layers.

The matrices of all adapters are stacked, with ranks padded with zeros, and each sequence multiplies with its own.
Index 0 is the model without an adapter. Files of mlx-lm, mlx-vlm and PEFT are read.

Other adapters that the libraries can apply (DoRA, adapters of embeddings and experts, full fine-tunes) become part of
the model, if there is only one adapter.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from msgspec import Struct

from pippin.core.errors import ServerError
from pippin.core.published import object_in, table
from pippin.core.safetensors import find_header
from pippin.engines.language.kernels.ways import decoder_in

log = logging.getLogger(__name__)

ENDS = ".lora_a", ".lora_b"
"""How mlx-lm names the two matrices of a layer."""

OWN = "adapter_path"
"""The name of the adapter for all requests that name none: the option that gives its folder."""


class Adapters:
    """The adapters of a model, and the one that each sequence of the next forward pass uses."""

    def __init__(
        self, names: tuple[str, ...] = (), default: int = 0, folders: Mapping[str, int] | None = None
    ) -> None:
        """`folders`: indices by the folders that the operator gave, which requests may name as well."""
        self.names = names
        self._folders = dict(folders or {})
        self.default = default  # the index for requests that name none
        self.uniform: int | None = 0  # the index that all sequences share, if they do
        self.rows = mx.array([0])

    def index(self, name: str) -> int:
        """The index of an adapter. Raises `ServerError` for a name that this model does not have."""
        if (given := self._folders.get(name, self._folders.get(os.path.normpath(name)))) is not None:
            return given
        if name not in self.names or name == OWN:
            there = ", ".join(each for each in self.names if each != OWN) or "none"
            raise ServerError(
                "invalid_request",
                f"There is no adapter {name!r} for this model (there are: {there}).",
                "adapter_path",
            )
        return self.names.index(name) + 1

    def choose(self, rows: list[int]) -> None:
        """Set the index of each sequence's adapter for the next forward pass."""
        self.uniform = rows[0] if min(rows) == max(rows) else None
        if self.uniform is None:
            self.rows = mx.array(rows)

    def of(self, sequences: int) -> list[int] | None:
        """The index of the adapter of each of so many sequences in the next forward pass; None if none has one."""
        if self.uniform == 0:
            return None
        if self.uniform is not None:
            return [self.uniform] * sequences
        return list(map(int, np.asarray(self.rows)))


class AdaptedLinear(nn.Module):  # type: ignore[misc]  # untyped in mlx
    """A linear layer, and `down` [adapters, in, rank] and `up` [adapters, rank, out]: y = base(x) + x down up."""

    def __init__(self, base: nn.Module, adapters: Adapters, down: mx.array, up: mx.array) -> None:
        super().__init__()
        self.base = base
        self.adapters = adapters
        self.down = down
        self.up = up

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = self.base(x)
        uniform = self.adapters.uniform
        if uniform == 0:
            return y
        if uniform is None:
            down, up = self.down[self.adapters.rows], self.up[self.adapters.rows]
        else:  # as views: by a number, MLX would copy them in every step
            down, up = (each[uniform : uniform + 1].squeeze(0) for each in (self.down, self.up))
        return y + ((x @ down) @ up).astype(y.dtype)


class _Addition(Struct, frozen=True):
    """The matrices that one adapter adds to one layer, with its scale multiplied into `up`."""

    down: mx.array  # [in, rank]
    up: mx.array  # [rank, out]


def install(model: nn.Module, own: str | None, named: Mapping[str, str]) -> Adapters:
    """Replace the adapted layers of a model. `own` and `named` are folders of adapters; `own` serves all requests that
    name no adapter. Raises `ServerError("load_failed")` for an adapter that does not fit."""
    folders = {**({OWN: own} if own is not None else {}), **named}
    if not folders:
        return Adapters()
    try:
        return _install_low_rank(model, folders, default=1 if own is not None else 0)
    except ServerError as refusal:
        if own is None or named:
            raise
        _apply_fixed(model, Path(own).expanduser(), refusal)
        return Adapters(folders={own: 0})


def _apply_fixed(model: nn.Module, folder: Path, refusal: ServerError) -> None:
    """Let the library make an adapter part of the model. Raises `refusal` if the library cannot apply all of it: it
    begins a matrix that is missing with random numbers, and leaves out what it does not know."""
    inner, header = getattr(model, "inner", None), find_header(file_of(folder))
    names = set() if header is None else set(header.arrays)
    first, second = ({name.removesuffix(end) for name in names if name.endswith(end)} for end in ENDS)
    if first != second:
        raise refusal
    try:
        if inner is None:
            from mlx_lm.tuner.utils import load_adapters

            load_adapters(model, str(folder))
        else:
            from mlx_vlm.trainer.peft.utils import apply_lora_layers

            apply_lora_layers(inner, folder)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError, IndexError) as error:
        log.info("the library cannot apply the adapter either: %s", error)
        raise refusal from error
    if inner is None and names - {name for name, _ in tree_flatten(model.parameters())}:
        raise refusal
    model.eval()
    mx.eval(model.parameters())
    log.info("the adapter in %s is part of the model: requests cannot name others", folder.name)


def _install_low_rank(model: nn.Module, folders: Mapping[str, str], default: int) -> Adapters:
    layers = dict(model.named_modules())
    found: dict[str, dict[str, _Addition]] = {}
    linears: dict[str, _Linear] = {}
    for name, folder in folders.items():
        place = Path(folder).expanduser()
        found[name] = _placed(read_pairs(name, place), layers)
        if (kind := getattr(model, "model_type", None)) in FOLDED and (place / PEFT).exists():
            raise _refused(name, f"{kind}'s class multiplies its weights with factors that PEFT's lack")
        for path in sorted(found[name]):
            linear = _linear(model, layers, path)
            if isinstance(linear, str):
                only = "only plain linear layers can be adapted"
                raise _refused(name, f"it changes {path}, and the model {linear}; {only}")
            linears[path] = linear
    names = list(found)
    numbers = {
        written: number
        for number, name in enumerate(names, start=1)
        for written in (folders[name], os.path.normpath(Path(folders[name]).expanduser()))
    }
    adapters = Adapters(tuple(names), default=default, folders=numbers)
    # All are stacked before any layer is replaced: an adapter that does not fit leaves the model unchanged.
    pairs = {path: _stacked(linear, path, found) for path, linear in sorted(linears.items())}
    decoder = decoder_in(model)
    for path, (down, up) in pairs.items():
        if decoder is not None:
            decoder.adapt(path, adapters.of, down, up)
        else:
            adapted = AdaptedLinear(layers[path], adapters, down, up)
            model.update_modules(tree_unflatten([(path, adapted)]))
    return adapters


FOLDED: Final = ("falcon_h1",)
"""Architectures whose linear layers hold factors of the configuration beside the published numbers. mlx-lm's own
adapters were trained with them."""

PEFT = "adapter_model.safetensors"
"""The file of an adapter that PEFT wrote."""

PREFIXES = (
    ("", ""),
    ("", "inner."),
    ("", "inner.language_model."),
    ("model.language_model.", "inner.language_model.model."),
    ("model.language_model.", "language_model.model."),
    ("transformer.", "model."),  # GPT-2
    ("gpt_neox.layers.", "model.h."),
    ("model.layers.", "backbone.layers."),  # Nemotron H
)
"""Prefixes of layer names in files of adapters, and in mlx-vlm's models as they are wrapped here: names of the whole
model, of its language model alone, and of transformers."""


def _placed(additions: dict[str, _Addition], layers: Mapping[str, nn.Module]) -> dict[str, _Addition]:
    """The additions by the paths of their layers in this model; unknown layers keep their names."""
    found: dict[str, _Addition] = {}
    for name, addition in additions.items():
        paths = (ours + name.removeprefix(written) for written, ours in PREFIXES if name.startswith(written))
        found[next((path for path in paths if path in layers), name)] = addition
    return found


def _linear(model: nn.Module, layers: Mapping[str, nn.Module], path: str) -> "_Linear | str":
    """The linear layer at a path, or what the model has there instead."""
    if (decoder := decoder_in(model)) is not None:
        sizes = decoder.linear_sizes(path)
        missing = "has no such layer that the kernels for CPUs can add to (--cpu-kernels off may do it)"
        return missing if sizes is None else _Linear(*sizes, mx.float32)
    match layers.get(path):
        case nn.QuantizedLinear() as base:
            out, words = base.weight.shape
            dtype = base.scales.dtype if base.mode == "affine" else mx.float32  # others scale by bytes
            return _Linear(words * 32 // base.bits, out, dtype)
        case nn.Linear() as base:
            out, inside = base.weight.shape
            return _Linear(inside, out, base.weight.dtype)
        case None:
            return "has no such layer"
        case base if isinstance(sizes := getattr(base, "linear_sizes", None), tuple):
            return _Linear(*sizes, mx.float32)  # a linear layer that is not MLX's
        case base:
            return f"has a {type(base).__name__} there"


class _Linear(Struct, frozen=True):
    """A linear layer that can be adapted."""

    inside: int
    out: int
    dtype: mx.Dtype  # of what is added


def _stacked(
    linear: _Linear, path: str, adapters: Mapping[str, dict[str, _Addition]]
) -> tuple[mx.array, mx.array]:
    """`down` [adapters, in, rank] and `up` [adapters, rank, out], ranks padded with zeros."""
    inside, out, dtype = linear.inside, linear.out, linear.dtype
    rank = max(additions[path].down.shape[1] for additions in adapters.values() if path in additions)
    down = mx.zeros((len(adapters) + 1, inside, rank), dtype=dtype)
    up = mx.zeros((len(adapters) + 1, rank, out), dtype=dtype)
    for index, (name, additions) in enumerate(adapters.items(), start=1):
        if (found := additions.get(path)) is None:
            continue
        own = found.down.shape[1]
        if found.down.shape[0] != inside or found.up.shape != (own, out):
            shapes = f"{tuple(found.down.shape)} and {tuple(found.up.shape)}"
            raise _refused(
                name, f"its shapes for {path} are {shapes}, and the layer goes from {inside} to {out}"
            )
        down[index, :, :own] = found.down.astype(dtype)
        up[index, :own] = found.up.astype(dtype)
    mx.eval(down, up)
    return down, up


def _method(config: Mapping[str, Any]) -> str:
    return "dora" if config.get("use_dora") else str(config.get("fine_tune_type", "lora"))


def is_low_rank(folder: str) -> bool:
    """Whether an adapter is plain LoRA on linear layers, by the headers of its files, or cannot be read. The library
    must apply any other, such as one of embeddings or experts."""
    place = Path(folder).expanduser()
    config = object_in(place / "adapter_config.json")
    header = find_header(file_of(place))
    return _method(config) == "lora" and all(
        len(array.shape) == 2 and ".layers." in f".{name}"
        for name, array in (header.arrays.items() if header is not None else ())
    )


def file_of(folder: Path) -> Path:
    """Where an adapter's folder has its weights."""
    peft = folder / PEFT
    return peft if peft.exists() else folder / "adapters.safetensors"


def read_pairs(name: str, folder: Path) -> dict[str, _Addition]:
    """Read an adapter of mlx-lm, mlx-vlm or PEFT: its additions by the path of the layer. Raises
    `ServerError("load_failed")`."""
    config = object_in(folder / "adapter_config.json")
    if not config:
        raise _refused(name, f"{folder} has no readable adapter_config.json")
    if (method := _method(config)) != "lora":
        raise _refused(name, f"it is of type {method}, and only LoRA is supported")
    path = file_of(folder)
    try:
        weights = mx.load(str(path))
        assert isinstance(weights, dict)  # of a safetensors file
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(name, f"{path.name} cannot be read ({error})") from error
    return _of_peft(name, config, weights) if path.name == PEFT else _of_mlx(name, config, weights)


def _of_mlx(name: str, config: dict[str, Any], weights: dict[str, mx.array]) -> dict[str, _Addition]:
    ends = ENDS
    scale: Any = table(config.get("lora_parameters")).get("scale")
    if "rank" in config and "lora_parameters" not in config:
        # The form of mlx-vlm before it adopted mlx-lm's: `alpha` over `rank` scales the product of A and B.
        rank, alpha = config["rank"], config.get("alpha", 0.1)
        if not isinstance(rank, int) or rank < 1 or not all(map(_is_number, (rank, alpha))):
            raise _refused(name, "its adapter_config.json gives no plain rank and alpha")
        ends, scale = (".A", ".B"), alpha / rank
    elif not _is_number(scale):
        raise _refused(name, "its adapter_config.json gives no lora_parameters.scale")
    return _paired(name, weights, *ends, lambda _, down, up: _Addition(down, up * scale))


MORE_THAN_PAIRS: Final = frozenset(
    {"alora_invocation_tokens", "layer_replication", "lora_bias", "modules_to_save"}
    | {"target_parameters", "trainable_token_indices"}
)
"""Fields of PEFT's adapter_config.json that change more than pairs of matrices on linear layers can. Which layers have
pairs, the file of weights says: `target_modules`, `layers_to_transform` and others chose them."""

OF_PAIRS: Final = frozenset({"use_rslora"})
"""Of the fields `use_...`, which change the computation, those that are honoured."""

OF_TRAINING: Final = frozenset(
    {"corda_config", "eva_config", "loftq_config", "lora_ga_config", "megatron_config", "runtime_config"}
)
"""Of the fields `..._config`, those that tell how pairs were begun or trained."""

STARTS: Final = (None, True, False, "gaussian", "orthogonal", "eva")
"""The values of `init_lora_weights` that leave the base model as it is; others, such as PiSSA's, take the matrices'
first values from it."""


def _check_peft(name: str, config: dict[str, Any]) -> None:
    """Raises `ServerError` naming a field of a PEFT adapter that can't be honoured."""
    kind = config.get("peft_type") or "LORA"
    if kind != "LORA":
        raise _refused(name, f"its peft_type is {kind}, and only LORA is supported")
    unknown = {field for field in config if field.startswith("use_") or field.endswith("_config")}
    unknown -= OF_PAIRS | OF_TRAINING
    fields = sorted(field for field in MORE_THAN_PAIRS | unknown if config.get(field))
    if config.get("init_lora_weights") not in STARTS:
        fields.append("init_lora_weights")
    if fields:
        raise _refused(
            name,
            f"its adapter_config.json sets {', '.join(fields)}, which changes more than pairs of matrices do; merge "
            "it into its base model with PEFT, if it can be merged, and serve that",
        )


def _of_peft(name: str, config: dict[str, Any], weights: dict[str, mx.array]) -> dict[str, _Addition]:
    _check_peft(name, config)
    rank, alpha, root = config.get("r"), config.get("lora_alpha"), config.get("use_rslora") or False
    ranks, alphas = (config.get(field) or {} for field in ("rank_pattern", "alpha_pattern"))
    plain = {"r": _is_number(rank), "lora_alpha": _is_number(alpha), "use_rslora": isinstance(root, bool)}
    plain |= {"rank_pattern": _are_patterns(ranks), "alpha_pattern": _are_patterns(alphas)}
    if wrong := [field for field, known in plain.items() if not known]:
        reason = f"its adapter_config.json has no plain {', '.join(wrong)} (numbers go up to {LARGEST})"
        raise _refused(name, reason)

    def addition(path: str, down: mx.array, up: mx.array) -> _Addition:
        own = _by_pattern(ranks, path, rank)
        if own < 1 or own != down.shape[0]:
            reason = (
                f"its adapter_config.json gives {path} the rank (r) {own}, and its matrix has {down.shape[0]}"
            )
            raise _refused(name, reason)
        scale = _by_pattern(alphas, path, alpha) / (own**0.5 if root else own)
        return _Addition(down.T, up.T * scale)

    named = {key.removeprefix("base_model.model."): value for key, value in weights.items()}
    return _paired(name, named, ".lora_A.weight", ".lora_B.weight", addition)


LARGEST: Final = 65504
"""The largest number in 16 bits, in which most layers compute: larger scales and ranks are none."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


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


def _paired(
    name: str,
    weights: dict[str, mx.array],
    first: str,
    second: str,
    make: Callable[[str, mx.array, mx.array], _Addition],
) -> dict[str, _Addition]:
    found: dict[str, _Addition] = {}
    for key, down in weights.items():
        if key.endswith(second) and key.removesuffix(second) + first in weights:
            continue
        path = key.removesuffix(first)
        up = weights.get(path + second)
        if not key.endswith(first) or up is None or down.ndim != 2 or up.ndim != 2:
            raise _refused(name, f"it holds {key}, which is no pair of matrices of a plain linear layer")
        found[path] = make(path, down, up)
    if not found:
        raise _refused(name, "it adapts nothing")
    return found


def _refused(name: str, reason: str) -> ServerError:
    label = "adapter_path" if name == OWN else f"adapters.{name}"
    return ServerError("load_failed", f"The adapter {name!r} cannot be served: {reason}.", label)
