"""LoRA adapters of one base model, chosen for each sequence of a batch: low-rank additions to linear layers.

The matrices of all adapters are stacked, with ranks padded with zeros, and each sequence multiplies with its own.
Index 0 is the model without an adapter. Files of mlx-lm and of PEFT are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.core.errors import ServerError

OWN = "adapter_path"
"""The name of the adapter for all requests that name none: the option that gives its folder."""


class Adapters:
    """The adapters of a model, and the one that each sequence of the next forward pass has."""

    def __init__(self, names: tuple[str, ...] = (), default: int = 0) -> None:
        self.names = names
        self.default = default  # the index for requests that name none
        self.uniform: int | None = 0  # the index that all sequences share, if they do
        self.rows = mx.array([0])

    def index(self, name: str) -> int:
        """The index of an adapter. Raises `ServerError` for a name that this model does not have."""
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
        chosen = self.adapters.uniform
        if chosen == 0:
            return y
        if chosen is not None:
            return y + ((x @ self.down[chosen]) @ self.up[chosen]).astype(y.dtype)
        rows = self.adapters.rows
        return y + ((x @ self.down[rows]) @ self.up[rows]).astype(y.dtype)


@dataclass(frozen=True)
class _Addition:
    """The matrices that one adapter adds to one layer, with its scale multiplied into `up`."""

    down: mx.array  # [in, rank]
    up: mx.array  # [rank, out]


def install(model: nn.Module, own: str | None, named: Mapping[str, str]) -> Adapters:
    """Replace the adapted layers of a model. `own` and `named` are folders of adapters.

    `own` serves all requests that name no adapter. Raises `ServerError("load_failed")` for one that does not fit.
    """
    folders = {**({OWN: own} if own is not None else {}), **named}
    if not folders:
        return Adapters()
    loaded = [_read(name, Path(folder).expanduser()) for name, folder in folders.items()]
    adapters = Adapters(tuple(folders), default=1 if own is not None else 0)
    layers = dict(model.named_modules())
    for path in sorted({path for additions in loaded for path in additions}):
        owners = [name for name, additions in zip(folders, loaded, strict=True) if path in additions]
        base = layers.get(path)
        if not isinstance(base, (nn.Linear, nn.QuantizedLinear)):
            what = "has no such layer" if base is None else f"has a {type(base).__name__} there"
            raise _refused(
                owners[0], f"it changes {path}, and the model {what}; only plain linear layers can be adapted"
            )
        _replace(model, path, _stacked(base, path, list(folders), loaded, adapters))
    return adapters


def _stacked(
    base: nn.Module, path: str, names: list[str], loaded: list[dict[str, _Addition]], adapters: Adapters
) -> AdaptedLinear:
    out, inside = base.weight.shape
    if isinstance(base, nn.QuantizedLinear):
        inside = inside * 32 // base.bits
    dtype = base.scales.dtype if isinstance(base, nn.QuantizedLinear) else base.weight.dtype
    rank = max(additions[path].down.shape[1] for additions in loaded if path in additions)
    down = mx.zeros((len(names) + 1, inside, rank), dtype=dtype)
    up = mx.zeros((len(names) + 1, rank, out), dtype=dtype)
    for index, (name, additions) in enumerate(zip(names, loaded, strict=True), start=1):
        if (found := additions.get(path)) is None:
            continue
        if (
            found.down.shape[0] != inside
            or found.up.shape[1] != out
            or found.down.shape[1] != found.up.shape[0]
        ):
            shapes = f"{tuple(found.down.shape)} and {tuple(found.up.shape)}"
            raise _refused(
                name, f"its shapes for {path} are {shapes}, and the layer goes from {inside} to {out}"
            )
        own = found.down.shape[1]
        down[index, :, :own] = found.down.astype(dtype)
        up[index, :own] = found.up.astype(dtype)
    mx.eval(down, up)
    return AdaptedLinear(base, adapters, down, up)


def _replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent: Any = model
    *steps, last = path.split(".")
    for step in steps:
        parent = parent[int(step)] if isinstance(parent, list) else parent[step]
    parent[last] = layer


def _read(name: str, folder: Path) -> dict[str, _Addition]:
    """Read an adapter of mlx-lm or PEFT: its additions by the path of the layer."""
    try:
        config = json.loads((folder / "adapter_config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise _refused(name, f"{folder} has no readable adapter_config.json ({error})") from error
    method = config.get("fine_tune_type", "lora")
    if method != "lora" or config.get("use_dora"):
        raise _refused(
            name, f"it is of type {'dora' if config.get('use_dora') else method}, and only LoRA is supported"
        )
    peft = folder / "adapter_model.safetensors"
    path = peft if peft.exists() else folder / "adapters.safetensors"
    try:
        weights = mx.load(str(path))
        assert isinstance(weights, dict)  # of a safetensors file
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(name, f"{path.name} cannot be read ({error})") from error
    return _of_peft(name, config, weights) if path == peft else _of_mlx(name, config, weights)


def _of_mlx(name: str, config: dict[str, Any], weights: dict[str, mx.array]) -> dict[str, _Addition]:
    scale = config.get("lora_parameters", {}).get("scale")
    if not isinstance(scale, (int, float)):
        raise _refused(name, "its adapter_config.json gives no lora_parameters.scale")
    return _paired(name, weights, ".lora_a", ".lora_b", lambda down, up: _Addition(down, up * scale))


def _of_peft(name: str, config: dict[str, Any], weights: dict[str, mx.array]) -> dict[str, _Addition]:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, (int, float)) or config.get("rank_pattern"):
        raise _refused(name, "its adapter_config.json gives no plain r and lora_alpha")
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    plain = {key.removeprefix("base_model.model."): value for key, value in weights.items()}
    return _paired(
        name, plain, ".lora_A.weight", ".lora_B.weight", lambda down, up: _Addition(down.T, up.T * scale)
    )


def _paired(
    name: str, weights: dict[str, mx.array], first: str, second: str, make: Any
) -> dict[str, _Addition]:
    found: dict[str, _Addition] = {}
    for key, down in weights.items():
        if key.endswith(second):
            continue
        path = key.removesuffix(first)
        up = weights.get(path + second)
        if not key.endswith(first) or up is None or down.ndim != 2 or up.ndim != 2:
            raise _refused(name, f"it holds {key}, which is no pair of matrices of a plain linear layer")
        found[path] = make(down, up)
    if not found:
        raise _refused(name, "it adapts nothing")
    return found


def _refused(name: str, reason: str) -> ServerError:
    label = "adapter_path" if name == OWN else f"adapters.{name}"
    return ServerError("load_failed", f"The adapter {name!r} cannot be served: {reason}.", label)
