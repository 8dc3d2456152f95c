"""Picks models for this machine from the list that ships with the package."""

from importlib import resources
from typing import Final, Literal, get_args

from msgspec import Struct

from pippin.catalog.footprint import IN_KERNELS, PROCESS_BYTES, runs_on_kernels
from pippin.cli.fitting.shape import STORED_BYTES, Shape
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import from_json

Purpose = Literal["code", "chat", "vision", "embed"]
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
FLOAT32_BYTES: Final = 4
CONTEXT: Final = 32 * 1024  # tokens of one client
LISTED: Final = "November 2026"
"""When the list was last reviewed. Each name and shape was then found in several public repositories; sizes are
computed from the shapes."""


class Recommended(Struct, frozen=True, kw_only=True, rename={"purposes": "for"}):
    """An entry of the list."""

    id: str
    purposes: tuple[Purpose, ...]  # the main purpose comes first
    tools: bool
    architecture: str  # `model_type` in its config.json
    why: str
    shape: Shape

    @property
    def stored(self) -> int:
        """Bytes of its weights as downloaded."""
        return self.shape.stored_bytes

    def needed(self, *, on_cpu: bool) -> int:
        """Bytes of the weights, the process, and one client's context if the model keeps one.

        On a CPU, the kernels use some models as stored, and others become float32; keys and values are float32.
        """
        context = 0 if self.purposes[0] == "embed" else self.shape.context_bytes(CONTEXT)
        if not on_cpu:
            return PROCESS_BYTES + self.stored + context
        decodes = self.purposes[0] != "embed"  # the kernels run no encoders
        if decodes and runs_on_kernels({"model_type": self.architecture}, ModelOptions()):
            weights = int(self.stored * IN_KERNELS)
        else:
            weights = self.shape.weights * FLOAT32_BYTES
        return PROCESS_BYTES + weights + context * FLOAT32_BYTES // STORED_BYTES


def recommended() -> list[Recommended]:
    text = resources.files("pippin.cli.fitting").joinpath("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(listed: list[Recommended], purpose: Purpose, memory: int, *, on_cpu: bool) -> list[Recommended]:
    """The models for a purpose that fit into `memory` bytes, the largest first; models made for the purpose lead."""
    fitting = [each for each in listed if purpose in each.purposes and each.needed(on_cpu=on_cpu) <= memory]
    return sorted(fitting, key=lambda each: (each.purposes[0] != purpose, -each.stored))
