"""Picks models for this machine from the list that ships with the package."""

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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

QUICK: Final = 4.0  # tokens a second, about as many as people read
READ: Final = 256 << 20  # bytes, more than caches hold


class Recommended(Struct, frozen=True, kw_only=True, rename={"purposes": "for"}):
    """An entry of the list."""

    id: str
    purposes: tuple[Purpose, ...]  # the main purpose comes first
    tools: bool
    why: str
    stored: int  # bytes of its weights as downloaded
    weights: int  # their number; a table that is stored twice counts twice
    active: float = 1.0  # the share of the weights that a token is computed with
    config: dict[str, Any]  # what its config.json says of sizes

    def needed(self, *, on_cpu: bool) -> int:
        """Bytes of the weights, the process, and one client's context if the model keeps one, as `pippin fit` counts.

        On a CPU, the kernels use some models as stored, and others become float32; keys and values are float32.
        """
        embeds = self.purposes[0] == "embed"
        kind: ModelKind = "embeddings" if embeds else "language"
        width = 4 if on_cpu else 2
        context = 0 if embeds else context_bytes(self.config, USUAL_WINDOW, width, ModelOptions()) or 0
        return process_bytes(self.config, kind) + self._weights(kind, on_cpu=on_cpu) + context

    def _weights(self, kind: ModelKind, *, on_cpu: bool) -> int:
        if not on_cpu:
            return self.stored
        packed = runs_on_kernels(self.config, ModelOptions(), kind)
        return int(self.stored * IN_KERNELS) if packed else self.weights * 4

    def speed(self, bandwidth: float, *, on_cpu: bool) -> float:
        """Tokens a second for one client, where reading the weights is all that takes time."""
        return bandwidth / (self._weights("language", on_cpu=on_cpu) * self.active)


def recommended() -> list[Recommended]:
    text = Path(__file__).with_name("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(
    listed: list[Recommended], purpose: Purpose, memory: int, *, on_cpu: bool, bandwidth: float = math.inf
) -> list[Recommended]:
    """The models for a purpose that fit into `memory` bytes: first those that are quick enough and made for it, the
    largest first."""
    fitting = [each for each in listed if purpose in each.purposes and each.needed(on_cpu=on_cpu) <= memory]

    def rank(each: Recommended) -> tuple[bool, bool, int]:
        return each.speed(bandwidth, on_cpu=on_cpu) < QUICK, each.purposes[0] != purpose, -each.stored

    return sorted(fitting, key=rank)


def bandwidth() -> float:
    """Bytes of memory that the cores read in a second, tried for some hundredths of one; a GPU reads no fewer."""
    import numpy as np

    block = np.ones(READ // 8)
    with ThreadPoolExecutor() as pool:
        begin = time.perf_counter()
        list(pool.map(np.sum, np.array_split(block, os.cpu_count() or 1)))
        return float(block.nbytes / (time.perf_counter() - begin))


def suited(purpose: Purpose, memory: int) -> list[Suggestion]:
    """The first few of those that `pick` gives for this machine's device and the bandwidth of its memory."""
    on_cpu, fast = accelerator() == "cpu", bandwidth()
    return [
        Suggestion(
            id=each.id,
            stored_bytes=each.stored,
            needed_bytes=each.needed(on_cpu=on_cpu),
            tokens_per_second=round(each.speed(fast, on_cpu=on_cpu), 1),
            tools=each.tools,
            why=each.why,
        )
        for each in pick(recommended(), purpose, memory, on_cpu=on_cpu, bandwidth=fast)[:MOST]
    ]
