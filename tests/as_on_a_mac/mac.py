"""A made-up Mac, which the engine's tests take for their machine: its facts, and how its checkpoints are stored."""

import contextlib
import io
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from pippin.config.options.model import ModelOptions
from pippin.engines.device import DeviceFacts, DevicePlan, decide
from tests.as_on_a_mac.site.darwin import CHOSEN

WORKING_SETS: Final = {16: 11_453_251_584, 64: 51_539_607_552, 128: 115_448_725_504}
"""Bytes that Metal recommends to keep resident, by the GB of a Mac."""

ULPS: Final = 4
"""Tokens whose logits are within so many steps of bfloat16, at the largest logit, may come in either order. Nearly all
architectures and forms of checkpoints stay below 2 (measured). gemma3_text in 4 bits, alone and in a batch, comes to
3.1, as do adapters, which their reference computes in 16 bits."""

FORMS: Final = {
    "bfloat16": None,
    "4bit": ("affine", 64, 4, None),
    "mxfp4": ("mxfp4", 32, 4, None),
    "mixed": ("affine", 64, 4, {"group_size": 64, "bits": 8}),
}
"""Mode, size of groups and bits of weights, and what the first and last layers have instead. Scales are bfloat16."""


@dataclass(frozen=True)
class Mac:
    gigabytes: int = 16
    form: str = "bfloat16"
    even: bool = False  # rounds one row as it does several, so that equal answers can be asked for

    @property
    def facts(self) -> DeviceFacts:
        memory = self.gigabytes << 30
        return DeviceFacts(
            system="Darwin",
            accelerator="metal",
            memory=memory,
            free=memory // 2,
            working_set=WORKING_SETS[self.gigabytes],
            most_arrays=499_000,
            largest_array=WORKING_SETS[self.gigabytes] * 3 // 4,
        )

    @cached_property
    def plan(self) -> DevicePlan:
        return decide(self.facts, ModelOptions())

    def stored(self, model: nn.Module, config: dict[str, Any]) -> dict[str, Any]:
        """Change a model's weights to what such a Mac's checkpoints have. Gives the configuration to store."""
        from mlx_lm.utils import quantize_model

        model.set_dtype(mx.bfloat16)
        form = FORMS[self.form]
        if form is None:
            return config
        mode, group_size, bits, other = form
        last = f"layers.{config.get('num_hidden_layers', 1) - 1}."

        def chosen(path: str, module: nn.Module) -> bool | dict[str, int]:
            return other if other is not None and ("layers.0." in path or last in path) else True

        with contextlib.redirect_stdout(io.StringIO()):
            return quantize_model(model, config, group_size, bits, mode, quant_predicate=chosen)[1]


def chosen_mac() -> Mac | None:
    """The Mac that this process is on, as `16 4bit` says: its GB, and the form of checkpoints; None on the machine
    itself."""
    words = os.environ.get(CHOSEN, "").split()
    return Mac(int(words[0]), words[1], "even" in words) if words else None


def tie(logits: mx.array) -> float:
    """By how much a token may be behind the likeliest of these logits of 16 bits and be chosen, as rounding has it."""
    return ULPS * 2.0**-8 * float(mx.abs(logits.astype(mx.float32)).max())
