"""Picks models for this machine from the list that ships with the package."""

from importlib import resources
from typing import Final, Literal, get_args

from msgspec import Struct, field

from pippin.catalog.footprint import IN_KERNELS, runs_on_kernels
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import from_json

Purpose = Literal["code", "chat", "vision", "embed"]
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
DEQUANTISED: Final = 7.2
"""Times as much as 4-bit weights take where a device computes them in float32: 32 bits for about 4.5 stored."""
LISTED: Final = "November 2026"
"""When the list was last looked through. Each name was found in several public repositories then; sizes are those that
the hub showed for these or for conversions of the same bits, or follow from the number of weights."""


class Recommended(Struct, frozen=True, rename={"purposes": "for"}):
    """A line of the list. Sizes are 10^9 bytes as published: of the weights, and of 32k tokens of one client."""

    id: str
    gb: float
    context_gb: float
    tools: bool
    architecture: str  # `model_type` in its config.json
    why: str
    purposes: tuple[Purpose, ...] = field(default=())

    def needed(self, *, on_cpu: bool) -> int:
        """Bytes of weights and one client's context. On a CPU the kernels hold some models as they are stored, others
        become float32; keys and values take twice as much there."""
        weights, context = 1.0, 1.0
        if on_cpu:
            on_kernels = runs_on_kernels({"model_type": self.architecture}, ModelOptions())
            weights, context = (IN_KERNELS if on_kernels else DEQUANTISED), 2.0
        return int(1e9 * (self.gb * weights + self.context_gb * context))


def recommended() -> list[Recommended]:
    text = resources.files("pippin.cli.fitting").joinpath("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(listed: list[Recommended], purpose: Purpose, memory: int, *, on_cpu: bool) -> list[Recommended]:
    """The models for a purpose that fit into so many bytes, the largest first; models made for it before others."""
    fitting = [each for each in listed if purpose in each.purposes and each.needed(on_cpu=on_cpu) <= memory]
    return sorted(fitting, key=lambda each: (each.purposes[0] != purpose, -each.gb))
