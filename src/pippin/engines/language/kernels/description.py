"""Describes a model of mlx-lm to the kernels' decoder: layers, norms, rotary positions, and the origin of each
matrix."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from msgspec import Struct, field
from numpy.typing import NDArray
from pippin_kernels import Experts, Layer, Matrix, Network, Projection, Rope, Shape

from pippin.engines.language.kernels.architectures import (
    Architecture,
    architecture_of,
    decoder_of,
    head_dim,
    heads_of,
    is_mixture,
    rope_of,
    windows_of,
)
from pippin.engines.language.kernels.matrices import PACKED, floats, matrix_of, sizes, stacks_of, widened
from pippin.engines.language.upstream.file_arrays import Files

NORMED_OUTPUTS = {"mlp_norm": "pre_feedforward_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}
SAMPLED_TOKENS = 3


class Place(Struct, frozen=True):
    """A projection of the decoder that one of mlx-lm's layers, or some of its rows, became."""

    layer: int
    projection: Projection
    rows: slice


class Sample(Struct, frozen=True):
    """The output of mlx-lm's own layer for some states [tokens, hidden], in float32."""

    layer: int
    states: NDArray[np.float32]
    expected: NDArray[np.float32]


class Description(Struct, frozen=True, kw_only=True):
    shape: Shape
    head: Matrix | None  # if it is not the embedding's
    args: Any  # of mlx-lm's decoder
    architecture: Architecture
    samples: tuple[Sample, ...]  # one for each sort of layer, or none
    # The linear layers of the model that adapters may name: input size, output size, and places in the decoder.
    linears: dict[str, tuple[int, int, tuple[Place, ...]]]


class Describer(Struct):
    architecture: Architecture
    prefix: str
    head_dim: int
    ropes: dict[object, Rope] = field(default_factory=dict)
    linears: dict[str, tuple[int, int, tuple[Place, ...]]] = field(default_factory=dict)

    def layer(self, index: int, layer: Any, window: int) -> Layer:
        # Each array by itself would take twice as long: reading one is quicker than waiting for it.
        mx.eval(layer.parameters())
        architecture, attention = self.architecture, layer.self_attn
        after = {"mlp_norm": "post_attention_layernorm"}
        if architecture.norms_outputs:
            after = {**NORMED_OUTPUTS, "attention_out_norm": "post_attention_layernorm"}
        inside = {"query_norm": "q_norm", "key_norm": "k_norm"}
        norms = {name: self.norm(layer[mine]) for name, mine in after.items()}
        norms |= {name: self.norm(attention[mine]) for name, mine in inside.items() if mine in attention}
        path = f"{self.prefix}model.layers.{index}"
        return Layer(
            **self._attention(index, attention, f"{path}.self_attn"),
            network=self._network(index, layer, f"{path}.{architecture.network}"),
            input_norm=self.norm(layer.input_layernorm),
            **norms,
            sinks=floats(attention.sinks) if "sinks" in attention else None,
            rope=self._place_of(rope_of(attention.rope)),
            window=window,
        )

    def _attention(self, index: int, attention: Any, path: str) -> dict[str, Matrix]:
        architecture = self.architecture
        found = self._whole(index, {"output": "o_proj"}, attention, path)
        if not architecture.fused:
            names: dict[Projection, str] = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
            return found | self._whole(index, names, attention, path)
        queries = int(getattr(attention, architecture.heads)) * self.head_dim
        keys = int(getattr(attention, architecture.kv_heads)) * self.head_dim
        rows: dict[Projection, slice] = {
            "query": slice(0, queries),
            "key": slice(queries, queries + keys),
            "value": slice(queries + keys, queries + 2 * keys),
        }
        return found | self._parts(index, rows, attention.qkv_proj, f"{path}.qkv_proj")

    def _network(self, index: int, layer: Any, path: str) -> Network | Experts:
        architecture, network = self.architecture, layer[self.architecture.network]
        mixture = architecture.mixture
        if mixture is not None and is_mixture(architecture, layer):
            return Experts(
                router=matrix_of(network[mixture.router]),
                **stacks_of(network[mixture.experts]),
                chosen=int(getattr(network, mixture.chosen)),
                # Where it does not say, the weights of the chosen experts sum to 1.
                normalized=bool(getattr(network, "norm_topk_prob", True)),
            )
        down = self._whole(index, {"down": "down_proj"}, network, path)
        if architecture.fused:
            half = sizes(network.gate_up_proj)[1] // 2
            rows: dict[Projection, slice] = {"gate": slice(0, half), "up": slice(half, 2 * half)}
            return Network(**down, **self._parts(index, rows, network.gate_up_proj, f"{path}.gate_up_proj"))
        names: dict[Projection, str] = {"gate": "gate_proj", "up": "up_proj"}
        return Network(**down, **self._whole(index, names, network, path))

    def _whole(self, index: int, names: dict[Projection, str], module: Any, path: str) -> dict[str, Matrix]:
        """The projections that are each a linear layer of this module, with such a name."""
        for projection, name in names.items():
            self.linears[f"{path}.{name}"] = (*sizes(module[name]), (Place(index, projection, slice(None)),))
        return {projection: matrix_of(module[name]) for projection, name in names.items()}

    def _parts(self, index: int, rows: dict[Projection, slice], module: Any, path: str) -> dict[str, Matrix]:
        self.linears[path] = (*sizes(module), tuple(Place(index, name, own) for name, own in rows.items()))
        return {name: matrix_of(module, own) for name, own in rows.items()}

    def _place_of(self, rope: Rope | None) -> int | None:
        """The index of rotary positions among those of the model, of which alike ones are one."""
        if rope is None:
            return None
        key = rope.inverse_frequencies.tobytes(), rope.interleaved, rope.scale, rope.stretch
        self.ropes.setdefault(key, rope)
        return list(self.ropes).index(key)

    def norm(self, norm: Any) -> NDArray[np.float32]:
        weight = floats(norm.weight)
        return weight + np.float32(1) if self.architecture.norms_less_one else weight


def describe(model: nn.Module, *, sampled: bool) -> Description:
    """The decoder's shape, with weights in the kernels' layout, for a model to which `why_not` has no objection.
    Removes the weights from the model as it goes, so that they are not in memory twice. Raises `ValueError` for damaged
    ones."""
    files = vars(model).pop("files", Files())
    prefix, model = decoder_of(model)
    architecture = architecture_of(model)
    assert architecture is not None
    args, inner = model.args, model.model
    attention = inner.layers[0].self_attn
    windows = windows_of(model)
    describer = Describer(architecture, prefix, head_dim(architecture, attention))
    width = sizes(attention.o_proj)[1]
    samples = tuple(_samples(architecture, inner.layers, windows, width)) if sampled else ()
    files.leave_out(model, *PACKED)
    layers = []
    for index, layer in enumerate(inner.layers):
        layers.append(describer.layer(index, layer, windows[index]))
        inner.layers[index] = nn.Identity()
    heads = [matrix_of(head) for head in heads_of(model)]
    shape = Shape(
        embedding=matrix_of(inner.embed_tokens),
        final_norm=describer.norm(inner.norm),
        layers=tuple(layers),
        ropes=tuple(describer.ropes.values()),
        heads=int(getattr(attention, architecture.heads)),
        kv_heads=int(getattr(attention, architecture.kv_heads)),
        head_dim=describer.head_dim,
        activation=architecture.activation,
        norm_eps=float(args.rms_norm_eps),
        attention_scale=float(getattr(attention, architecture.scale)),
        attention_softcap=float(args.attn_logit_softcapping) if architecture.attention_softcap else 0.0,
        embedding_scale=architecture.embedding_scale(args),
        residual_scale=architecture.residual_scale(args),
    )
    return Description(
        shape=shape,
        head=heads[0] if heads else None,
        args=args,
        architecture=architecture,
        samples=samples,
        linears=describer.linears,
    )


def _samples(
    architecture: Architecture, layers: list[Any], windows: list[int], hidden: int
) -> Iterator[Sample]:
    """The output of the first layer of each sort: with a window and without, with experts and without, ..."""
    known: set[tuple[object, ...]] = set()
    for index, layer in enumerate(layers):
        rope = layer.self_attn.rope
        sort = (
            type(layer),
            windows[index] > 0,
            is_mixture(architecture, layer),
            type(rope),
            getattr(rope, "base", None),
        )
        if sort not in known:
            known.add(sort)
            states = mx.random.normal((1, SAMPLED_TOKENS, hidden), key=mx.random.key(index))
            cache = KVCache()
            with widened(layer):
                expected = floats(
                    layer(states, create_attention_mask(states, cache, return_array=True), cache)
                )
            yield Sample(index, floats(states)[0], expected[0])
