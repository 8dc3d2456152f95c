"""The gated norm of Mamba 2's groups: what mixers of mlx-lm are mended by that have it over all groups at once."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu

from pippin.engines.language.upstream.classes import become


class GroupedNorm(nn.Module):  # type: ignore[misc] # mlx has no types
    """Each group of the numbers is divided by its own root of mean squares."""

    def __call__(self, hidden: mx.array, gate: mx.array | None = None) -> mx.array:
        late = self.gate_last
        if gate is not None and not late:
            hidden = swiglu(gate, hidden)
        normed = mx.fast.rms_norm(mx.unflatten(hidden, -1, (self.groups, -1)), None, self.epsilon)
        found: mx.array = self.weight * normed.flatten(-2)
        return swiglu(gate, found) if gate is not None and late else found


def by_groups(mixer: nn.Module, _: Any) -> None:
    """Give a mixer's norm as many groups as the mixer has."""
    norm = mixer.get("norm")
    if norm is None or mixer.n_groups == 1:
        return
    norm.epsilon = getattr(norm, "variance_epsilon", None) or norm.eps
    norm.gate_last = getattr(norm, "norm_before_gate", False)
    norm.groups = mixer.n_groups
    become(norm, GroupedNorm)


WHY = "the norm behind the gate is taken over all groups at once"
