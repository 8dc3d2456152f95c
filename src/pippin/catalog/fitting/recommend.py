"""Picks models for this machine from the list that ships with the package."""

from importlib import resources
from typing import Any, Final

from msgspec import Struct

from pippin.catalog.fitting.fit import USUAL_WINDOW
from pippin.catalog.footprint import IN_KERNELS, context_bytes, process_bytes, runs_on_kernels
from pippin.config.accelerator import accelerator
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import from_json
from pippin.core.models import ModelKind, Purpose, Suggestion

MOST: Final = 5  # suggestions
LISTED: Final = "November 2026"
"""When the list was last reviewed. Each name and configuration was then found in several public repositories; sizes
are those of MLX's modules of these configurations."""


class Recommended(Struct, frozen=True, kw_only=True, rename={"purposes": "for"}):
    """An entry of the list."""

    id: str
    purposes: tuple[Purpose, ...]  # the main purpose comes first
    tools: bool
    why: str
    stored: int  # bytes of its weights as downloaded
    weights: int  # their number; a table that is stored twice counts twice
    config: dict[str, Any]  # what its config.json says of sizes

    def needed(self, *, on_cpu: bool) -> int:
        """Bytes of the weights, the process, and one client's context if the model keeps one, as `pippin fit` counts.

        On a CPU, the kernels use some models as stored, and others become float32; keys and values are float32.
        """
        embeds = self.purposes[0] == "embed"
        kind: ModelKind = "embeddings" if embeds else "language"
        width = 4 if on_cpu else 2
        context = 0 if embeds else context_bytes(self.config, USUAL_WINDOW, width, ModelOptions()) or 0
        weights = self.stored
        if on_cpu and runs_on_kernels(self.config, ModelOptions(), kind):
            weights = int(weights * IN_KERNELS)
        elif on_cpu:
            weights = self.weights * width
        return process_bytes(self.config, kind) + weights + context


def recommended() -> list[Recommended]:
    text = resources.files("pippin.catalog.fitting").joinpath("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(listed: list[Recommended], purpose: Purpose, memory: int, *, on_cpu: bool) -> list[Recommended]:
    """The models for a purpose that fit into `memory` bytes, the largest first; models made for the purpose lead."""
    fitting = [each for each in listed if purpose in each.purposes and each.needed(on_cpu=on_cpu) <= memory]
    return sorted(fitting, key=lambda each: (each.purposes[0] != purpose, -each.stored))


def suited(purpose: Purpose, memory: int) -> list[Suggestion]:
    """The first few of those that `pick` gives for this machine's device."""
    on_cpu = accelerator() == "cpu"
    return [
        Suggestion(
            id=each.id,
            stored_bytes=each.stored,
            needed_bytes=each.needed(on_cpu=on_cpu),
            tools=each.tools,
            why=each.why,
        )
        for each in pick(recommended(), purpose, memory, on_cpu=on_cpu)[:MOST]
    ]
