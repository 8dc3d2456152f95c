"""Lets the kernels compute single layers of a model of mlx-lm, for architectures that the decoder does not know.

Products use the weights as they are stored, so that nothing is widened to float32. The rest of the model runs on MLX,
which waits for each of these layers."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.switch_layers import SwiGLU, SwitchGLU
from numpy.typing import NDArray
from pippin_kernels import Experts, Kernels

from pippin.config.options.model import CpuActivations
from pippin.engines.language.kernels.agreement import OtherAnswer, require_agreement
from pippin.engines.language.kernels.matrices import (
    EMBEDDINGS,
    LINEARS,
    PACKED,
    floats,
    matrix_of,
    sizes,
    stacks_of,
    why_no_matrix,
    widened,
)
from pippin.engines.language.upstream.file_arrays import Files

OAI = (1.702, 7.0)
"""Factor and limit of gpt_oss's activation, which the kernels have as constants."""

TRIED = (1, 2, 3)  # tokens
LARGEST_TRIED = 1 << 25  # numbers of a layer that MLX multiplies with for comparison, in about a second


def _numbers(x: mx.array) -> NDArray[np.float32]:
    return np.asarray(x if x.dtype == mx.float32 else x.astype(mx.float32))


class KernelMatrix(nn.Module):  # type: ignore[misc] # mlx has no types
    """A layer with one matrix."""

    def __init__(self, kernels: Kernels, layer: nn.Module) -> None:
        super().__init__()
        self._kernels = kernels
        self._matrix = matrix_of(layer)
        self.weight_bytes = self._matrix.nbytes

    def product(self, x: mx.array) -> mx.array:
        vectors = _numbers(x)
        products = self._kernels.product(self._matrix, vectors.reshape(-1, vectors.shape[-1]))
        return mx.array(products.reshape(*vectors.shape[:-1], -1))


class KernelLinear(KernelMatrix):
    """Replaces `nn.Linear` and `nn.QuantizedLinear`."""

    def __init__(self, kernels: Kernels, linear: nn.Module) -> None:
        super().__init__(kernels, linear)
        self.linear_sizes = sizes(linear)

    __call__ = KernelMatrix.product


class KernelEmbedding(KernelMatrix):
    """Replaces `nn.Embedding` and `nn.QuantizedEmbedding`."""

    def __init__(self, kernels: Kernels, embedding: nn.Module) -> None:
        super().__init__(kernels, embedding)
        self.vocabulary = self._matrix.rows

    def __call__(self, tokens: mx.array) -> mx.array:
        indexes = np.asarray(tokens)
        rows = self._kernels.rows(self._matrix, indexes)
        return mx.array(rows.reshape(*indexes.shape, -1))

    as_linear = KernelMatrix.product


class KernelExperts(nn.Module):  # type: ignore[misc]
    """Replaces `SwitchGLU`: the networks that a model's own router chooses."""

    def __init__(self, kernels: Kernels, experts: nn.Module) -> None:
        super().__init__()
        self._kernels = kernels
        self._activation: Literal["silu", "swiglu_oai"] = (
            "silu" if type(experts.activation) is SwiGLU else "swiglu_oai"
        )
        self._stacks = stacks_of(experts)
        self.weight_bytes = sum(stack.matrix.nbytes for stack in self._stacks.values())

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """Maps x [..., hidden] and indices [..., k] to [..., k, hidden]."""
        vectors, chosen = _numbers(x), np.asarray(indices)
        experts = Experts(router=None, **self._stacks, chosen=chosen.shape[-1])
        flat = vectors.reshape(-1, vectors.shape[-1]), chosen.reshape(-1, chosen.shape[-1])
        found = self._kernels.mixture(experts, self._activation, *flat)
        return mx.array(found.reshape(*chosen.shape, -1))


class KernelNorm(nn.Module):  # type: ignore[misc]
    """Replaces `nn.RMSNorm`, which MLX splits into eight operations on a CPU."""

    def __init__(self, kernels: Kernels, norm: nn.Module) -> None:
        super().__init__()
        self._kernels = kernels
        self._weight = floats(norm.weight)
        self._eps = float(norm.eps)
        self.weight_bytes = self._weight.nbytes

    def __call__(self, x: mx.array) -> mx.array:
        return mx.array(self._kernels.rms_norm(_numbers(x), self._weight, self._eps))


MADE: Final[dict[type, Callable[[Kernels, nn.Module], nn.Module]]] = {
    nn.RMSNorm: KernelNorm,
    SwitchGLU: KernelExperts,
    **dict.fromkeys(LINEARS, KernelLinear),
    **dict.fromkeys(EMBEDDINGS, KernelEmbedding),
}
"""What takes the place of each layer."""


def replaceable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a model that the kernels can compute, by their paths. Looks at no weight."""
    for path, module in sorted(model.named_modules(), key=itemgetter(0)):
        if path and _is_known(module):
            yield path, module


def multiplies(module: nn.Module) -> bool:
    """Whether a layer multiplies vectors with a matrix, which is what the kernels are for."""
    return type(module) is not nn.RMSNorm


def _is_known(module: nn.Module) -> bool:
    if type(module) is nn.RMSNorm:
        return True
    if type(module) is SwitchGLU:
        activation = module.activation
        known = type(activation) is SwiGLU or (
            type(activation) is SwigluOAI and (activation._alpha, activation._limit) == OAI
        )
        parts = (module.gate_proj, module.up_proj, module.down_proj)
        return known and all(why_no_matrix(part) is None for part in parts)
    return type(module) in (*LINEARS, *EMBEDDINGS) and why_no_matrix(module) is None


def replace(
    model: nn.Module, threads: int, *, activations: CpuActivations = "float32", whole: bool = True
) -> str:
    """Let the kernels compute all layers of a model that they can; returns the instruction set. Vectors are rounded to
    `activations` once the layers were compared. A model that is not `whole`, such as a draft head, is not tested by a
    call with tokens.

    Raises `ValueError` for damaged weights, and `OtherAnswer` if the first layer of a sort computes something else than
    MLX's own, or if the model fails with the new layers: it cannot be used any more then.
    """
    kernels, files = Kernels(threads), vars(model).pop("files", Files())
    tried: set[tuple[object, ...]] = set()
    for path, module in replaceable(model):
        sort = type(module), getattr(module, "bits", None), getattr(module, "group_size", None)
        # The number of weights, or of packed words.
        size = (module.gate_proj if type(module) is SwitchGLU else module).weight.size
        expected = _expected(module) if sort not in tried and size <= LARGEST_TRIED else None
        files.leave_out(module, *PACKED)
        found = MADE[type(module)](kernels, module)
        if expected is not None:
            tried.add(sort)
            arguments, output = expected
            require_agreement(path, floats(found(*arguments)), floats(output))
        model.update_modules(tree_unflatten([(path, found)]))
    if whole:
        try:
            mx.eval(model(mx.array([TRIED]), cache=make_prompt_cache(model)))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise OtherAnswer(f"the model does more with its layers than to call them ({error})") from error
    if activations == "int8":
        kernels.round_activations()
    used: str = kernels.instruction_set
    return used


def _expected(module: Any) -> tuple[list[mx.array], mx.array]:
    """Random arguments, and the output of MLX's own layer for them: one row or vector."""
    if type(module) in EMBEDDINGS:
        arguments = [mx.array([[0]])]
    elif type(module) is SwitchGLU:
        size = sizes(module.gate_proj)[0]
        arguments = [_random(size), mx.array([[[0, module.gate_proj.num_experts - 1]]])]
    else:
        size = module.weight.shape[0] if type(module) is nn.RMSNorm else sizes(module)[0]
        arguments = [_random(size)]
    with widened(module):
        found = module(*arguments)
        mx.eval(found)
    return arguments, found.astype(mx.float32)


def _random(size: int) -> mx.array:
    return mx.random.normal((1, 1, size), key=mx.random.key(size))
