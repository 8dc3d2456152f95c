"""LoRA and DoRA adapters of one base model, chosen for each sequence of a batch: what they change of linear layers,
embeddings and the head.

The matrices of all adapters are stacked, with ranks padded with zeros, and each sequence multiplies with its own.
Index 0 is the model without an adapter.

Other adapters that the libraries can apply (of experts, full fine-tunes) become part of the model, if there is only
one adapter.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from msgspec import Struct
from msgspec.structs import replace

from pippin.core.errors import ServerError
from pippin.core.safetensors import find_header
from pippin.engines.language.kernels.ways import decoder_in
from pippin.engines.language.kv_cache.agreement import EMBEDDINGS
from pippin.engines.language.model.adapter_files import (
    ENDS,
    OWN,
    PEFT,
    Change,
    Read,
    file_of,
    merging,
    read_changes,
    refused,
)
from pippin.engines.language.model.head import HEAD
from pippin.engines.language.upstream.classes import become

log = logging.getLogger(__name__)


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


class Changes(nn.Module):  # type: ignore[misc]  # untyped in mlx
    """What adapters change of a product y = x W, where x may be the rows of a table instead.

    `down` [adapters, in, rank] and `up` [adapters, rank, out], `gain` and `shift` [adapters, out] give
    y gain + x down up + shift; `wholes` are matrices of an adapter's own in place of W [out, in], or of the table.
    """

    def __init__(
        self,
        adapters: Adapters,
        down: mx.array,
        up: mx.array,
        gain: mx.array | None = None,
        shift: mx.array | None = None,
        wholes: Mapping[str, mx.array] | None = None,
        of_table: bool = False,
    ) -> None:
        super().__init__()
        self.adapters, self.of_table = adapters, of_table
        self.down, self.up, self.gain, self.shift = down, up, gain, shift
        self.wholes = dict(wholes or {})  # by an adapter's index
        self.only_pairs = not wholes and gain is None and shift is None

    def __call__(self, x: mx.array, y: mx.array) -> mx.array:
        """y of the base model, as each sequence's adapter changes it."""
        uniform, rows = self.adapters.uniform, self.adapters.rows
        # A draft head that shares the layer has a batch of its own, and what it proposes is checked.
        if uniform == 0 or (uniform is None and rows.size != len(x)):
            return y
        if not self.only_pairs:
            y = self._without_pairs(x, y)
            if not self.down.shape[-1]:
                return y
        if uniform is None:
            low = self.down[rows[:, None], x] if self.of_table else x @ self.down[rows]
            return y + (low @ self.up[rows]).astype(y.dtype)
        # As views: by a number, MLX would copy them in every step.
        down, up = (each[uniform : uniform + 1].squeeze(0) for each in (self.down, self.up))
        low = down[x] if self.of_table else x @ down
        return y + (low @ up).astype(y.dtype)

    def _without_pairs(self, x: mx.array, y: mx.array) -> mx.array:
        uniform, rows = self.adapters.uniform, self.adapters.rows
        for index, whole in self.wholes.items():
            if uniform in (None, int(index)):
                own = (whole[x] if self.of_table else x @ whole.T).astype(y.dtype)
                y = own if uniform is not None else mx.where((rows == int(index))[:, None, None], own, y)
        if self.gain is not None:
            y = y * self._chosen(self.gain).astype(y.dtype)
        return y if self.shift is None else y + self._chosen(self.shift).astype(y.dtype)

    def _chosen(self, vectors: mx.array) -> mx.array:
        """That of the adapter of all sequences [1, out], or those of each [sequences, 1, out]."""
        uniform = self.adapters.uniform
        return vectors[self.adapters.rows][:, None] if uniform is None else vectors[uniform : uniform + 1]


class AdaptedLinear(nn.Module):  # type: ignore[misc]  # untyped in mlx
    """A linear layer that adapters change."""

    def __init__(self, base: nn.Module, changes: Changes) -> None:
        super().__init__()
        self.base, self.changes = base, changes

    def __call__(self, x: mx.array) -> mx.array:
        return self.changes(x, self.base(x))


def _adapt(model: nn.Module, module: nn.Module, site: "_Site", changes: Changes) -> None:
    """Have adapters change a linear layer, or an embedding where it is a table or the head."""
    if not isinstance(module, EMBEDDINGS):
        model.update_modules(tree_unflatten([(site.path, AdaptedLinear(module, changes))]))
        return
    kind, method = type(module), "as_linear" if site.head else "__call__"
    held = f"changes_of_{method}"  # no name of a method: `keep_at_hand` makes attributes of the parts of a module

    def changed(self: nn.Module, x: mx.array) -> mx.array:
        found: mx.array = getattr(kind, method)(self, x)
        return self[held](x, found)  # type: ignore[no-any-return]

    module[held] = changes
    become(module, type(kind.__name__, (kind,), {method: changed}))


class _Site(NamedTuple):
    """Where a change is made: `head` is for an embedding that is the head, too."""

    path: str
    head: bool = False


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
    found: dict[str, dict[_Site, Change]] = {}
    adapted: dict[_Site, _Layer] = {}
    for name, folder in folders.items():
        place = Path(folder).expanduser()
        found[name] = _placed(name, read_changes(name, place), layers)
        if (kind := getattr(model, "model_type", None)) in FOLDED and (place / PEFT).exists():
            raise refused(name, f"{kind}'s class multiplies its weights with factors that PEFT's lack")
        for site in sorted(found[name]):
            layer = _layer(model, layers, site)
            if isinstance(layer, str):
                only = "only linear layers, embeddings and the head can be adapted"
                raise refused(name, f"it changes {site.path}, and the model {layer}; {only}{merging(place)}")
            adapted[site] = layer
    names = list(found)
    numbers = {
        written: number
        for number, name in enumerate(names, start=1)
        for written in (folders[name], os.path.normpath(Path(folders[name]).expanduser()))
    }
    adapters = Adapters(tuple(names), default=default, folders=numbers)
    # All are stacked before any layer is replaced: an adapter that does not fit leaves the model unchanged.
    changes = {site: _stacked(adapters, layer, site, found) for site, layer in sorted(adapted.items())}
    decoder = decoder_in(model)
    for site, change in changes.items():
        if decoder is not None:
            decoder.adapt(site.path, adapters.of, change.down, change.up)
        else:
            _adapt(model, layers[site.path], site, change)
    return adapters


TABLES: Final = "embed_tokens wte word_embeddings tok_embeddings embeddings embed_in embedding".split()
"""How models call their embeddings of words, from the name that is never another's on."""

HEADS: Final = frozenset({HEAD, "embed_out"})
"""How they call a head that is a layer of its own."""

FOLDED: Final = ("falcon_h1",)
"""Architectures whose linear layers hold factors of the configuration beside the published numbers. mlx-lm's own
adapters were trained with them."""

BY_WEIGHT: Final = ("llama4_text", "minicpm", "molmo", "seed_oss")
"""Architectures that multiply by the weight of an embedding that is the head, too, instead of calling it."""

WITH_WEIGHTS: Final = (nn.Linear, nn.QuantizedLinear, *EMBEDDINGS)

PREFIXES = (
    ("", ""),
    ("", "inner."),
    ("", "inner.language_model."),
    ("model.language_model.", "inner.language_model.model."),
    ("model.language_model.", "language_model.model."),
    ("transformer.", "model."),  # GPT-2
    ("gpt_neox.layers.", "model.h."),
    ("gpt_neox.", "model."),
    ("model.", "backbone."),  # Nemotron-H
)
"""Prefixes of layer names in files of adapters, and in mlx-vlm's models as they are wrapped here: names of the whole
model, of its language model alone, and of transformers."""


def _tied(layers: Mapping[str, nn.Module]) -> str | None:
    """The path of the embedding that is the head, too; None if the model has a head of its own, or none is known."""
    ends = {path: path.rsplit(".", 1)[-1] for path in layers}
    found = [path for path, end in ends.items() if end in TABLES and isinstance(layers[path], EMBEDDINGS)]
    first = min((TABLES.index(ends[path]) for path in found), default=0)
    found = [path for path in found if ends[path] == TABLES[first]]
    return found[0] if len(found) == 1 and HEADS.isdisjoint(ends.values()) else None


def _placed(name: str, found: list[Read], layers: Mapping[str, nn.Module]) -> dict[_Site, Change]:
    """The changes by where they are made in this model; unknown layers keep their names."""
    placed: dict[_Site, Change] = {}
    tied = _tied(layers)
    for read in found:
        begins = ((written, ours) for written, ours in PREFIXES if read.name.startswith(written))
        paths = (ours + read.name.removeprefix(written) for written, ours in begins)
        own = _Site(next((path for path in paths if path in layers), read.name))
        if tied is not None and own.path not in layers and own.path.rsplit(".", 1)[-1] == HEAD:
            own = _Site(tied, head=True)
        twins = [own._replace(head=not own.head)] if read.shared and own.path == tied else []
        for site in (own, *twins):
            given = _turned(name, read.change, layers.get(site.path), site, own).given
            before = placed.get(site, Change())
            if before.given.keys() & given.keys():
                raise refused(name, f"it changes {read.name} twice")
            if given:
                placed[site] = replace(before, **given)
    return placed


def _turned(name: str, change: Change, module: nn.Module | None, site: _Site, own: _Site) -> Change:
    """A change that a file has for the site `own`, for this site of the same matrix."""
    if not isinstance(module, WITH_WEIGHTS):
        return change
    swaps, weight = site != own, module.weight
    if change.words is not None:
        weight, new, words = _weight(module), change.whole, mx.array(change.words)
        if max(change.words, default=0) >= len(weight) or new is None or new.shape[1:] != weight.shape[1:]:
            raise refused(name, f"the tokens that it changes are not all among those of {site.path}")
        chosen = mx.arange(len(weight))[:, None] == words
        change = Change((chosen.astype(new.dtype), new - weight[words]))
        swaps = site.head or not isinstance(module, EMBEDDINGS)
    elif change.whole is not None and weight.dtype != mx.uint32:
        whole = change.whole.astype(weight.dtype)
        change = replace(change, whole=None if mx.array_equal(whole, weight) else whole)
    if not swaps or change.pair is None:
        return change
    first, second = change.pair
    return replace(change, pair=(second.T, first.T))


def _weight(module: nn.Module) -> mx.array:
    """The matrix of a linear layer [out, in], or of an embedding [words, size]."""
    weight: mx.array = module.weight
    if not isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
        return weight
    form = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
    return mx.dequantize(weight, module.scales, module.get("biases"), **form)


class _Layer(Struct, frozen=True):
    """A layer that can be changed."""

    inside: int
    out: int
    dtype: mx.Dtype  # of what is added
    base: nn.Module | None = None  # None where only pairs can be added
    of_table: bool = False


def _layer(model: nn.Module, layers: Mapping[str, nn.Module], site: _Site) -> _Layer | str:
    """The layer at a site, or what the model has there instead."""
    if (decoder := decoder_in(model)) is not None:
        sizes = decoder.linear_sizes(site.path)
        missing = "has no such layer that the kernels for CPUs can add to (--cpu-kernels off may do it)"
        return missing if sizes is None else _Layer(*sizes, mx.float32)
    base = layers.get(site.path)
    if base is None:
        return "has no such layer"
    if isinstance(sizes := getattr(base, "linear_sizes", None), tuple):
        return _Layer(*sizes, mx.float32)  # a linear layer that is not MLX's
    if not isinstance(base, WITH_WEIGHTS):
        return f"has a {type(base).__name__} there"
    (out, inside), dtype = base.weight.shape, base.weight.dtype
    if dtype == mx.uint32:
        inside = inside * 32 // base.bits
        dtype = base.scales.dtype if base.mode == "affine" else mx.float32  # others scale by bytes
    if isinstance(base, EMBEDDINGS) and not site.head:
        return _Layer(out, inside, dtype, base, of_table=True)
    if site.head and any(getattr(each, "model_type", None) in BY_WEIGHT for each in model.modules()):
        return "multiplies by the weight of the embedding there"
    return _Layer(inside, out, dtype, base)


def _stacked(
    adapters: Adapters, layer: _Layer, site: _Site, found: Mapping[str, dict[_Site, Change]]
) -> Changes:
    """What all adapters change of a layer, ranks padded with zeros."""
    inside, out, dtype, base = layer.inside, layer.out, layer.dtype, layer.base
    rank = max(each[site].rank for each in found.values() if site in each)
    count = len(found) + 1
    down, up = mx.zeros((count, inside, rank), dtype=dtype), mx.zeros((count, rank, out), dtype=dtype)
    gain, shift, wholes = mx.ones((count, out)), mx.zeros((count, out)), {}
    own = mx.zeros(out) if base is None or isinstance(base, EMBEDDINGS) else base.get("bias", mx.zeros(out))
    for index, (name, each) in enumerate(found.items(), start=1):
        if (change := each.get(site)) is None:
            continue
        _check_shapes(name, site, layer, change)
        first, second = change.pair or (mx.zeros((inside, 0)), mx.zeros((0, out)))
        if change.magnitude is not None and base is not None:
            weight = _weight(base) if change.whole is None else change.whole
            weight = (weight if layer.of_table else weight.T) + first @ second
            gain[index] = change.magnitude / mx.linalg.norm(weight, axis=0)
        down[index, :, : change.rank] = first.astype(dtype)
        up[index, : change.rank] = (second * gain[index]).astype(dtype)
        if change.whole is not None:
            wholes[str(index)] = change.whole.astype(dtype)
        # The base layer's result has its bias in it, and that of a whole matrix has none.
        shift[index] = own if change.bias is None else change.bias
        shift[index] -= gain[index] * (own if change.whole is None else 0)
        shift[index] += 0 if change.shift is None else change.shift
    gained, shifted = (mx.any(gain != 1).item(), mx.any(shift != 0).item())
    made = Changes(
        adapters, down, up, gain if gained else None, shift if shifted else None, wholes, layer.of_table
    )
    mx.eval(made.parameters())
    return made


def _check_shapes(name: str, site: _Site, layer: _Layer, change: Change) -> None:
    """Raises `ServerError` if the arrays are not those of the layer."""
    inside, out, rank = layer.inside, layer.out, change.rank
    wanted = {
        "pair": ((inside, rank), (rank, out)),
        "whole": (inside, out) if layer.of_table else (out, inside),
    }
    wrong = []
    for field, each in change.given.items():
        shape = tuple(part.shape for part in each) if field == "pair" else each.shape
        # Where nothing else is known of the layer, pairs alone can be added.
        if shape != wanted.get(field, (out,)) or (layer.base is None and field != "pair"):
            wrong.append(f"{shape} ({field})")
    if wrong:
        shapes, between = " and ".join(wrong), f"the layer goes from {inside} to {out}"
        raise refused(name, f"its shapes for {site.path} are {shapes}, and {between}")
