"""Picks models for this machine from the list that ships with the package."""

from importlib import resources
from typing import Final, Literal, get_args

from msgspec import Struct, field

from pippin.core.decoding import from_json

Purpose = Literal["code", "chat", "vision", "embed"]
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
DEQUANTISED: Final = 7.2
"""Times as much as 4-bit weights take where a device computes them in float32: 32 bits for about 4.5 stored."""


class Recommended(Struct, frozen=True, rename={"purposes": "for"}):
    """A line of the list. Sizes are 10^9 bytes as published: of the weights, and of 32k tokens of one client."""

    id: str
    gb: float
    context_gb: float
    tools: bool
    why: str
    purposes: tuple[Purpose, ...] = field(default=())

    def needed(self, *, dequantised: bool) -> int:
        """Bytes of weights and one client's context; keys and values take twice as much in float32."""
        weights, context = (DEQUANTISED, 2.0) if dequantised else (1.0, 1.0)
        return int(1e9 * (self.gb * weights + self.context_gb * context))


def recommended() -> list[Recommended]:
    text = resources.files("pippin.cli.fitting").joinpath("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(listed: list[Recommended], purpose: Purpose, memory: int, *, dequantised: bool) -> list[Recommended]:
    """The models for a purpose that fit into so many bytes, the largest first; models made for it before others."""
    fitting = [
        each for each in listed if purpose in each.purposes and each.needed(dequantised=dequantised) <= memory
    ]
    return sorted(fitting, key=lambda each: (each.purposes[0] != purpose, -each.gb))
