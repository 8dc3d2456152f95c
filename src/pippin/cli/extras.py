"""Tells what to install if this installation lacks parts that a replaced server served."""

import importlib.util
from collections.abc import Iterator
from typing import Final

from pippin.config.errors import install_command
from pippin.config.options.start import Compat

SERVED_WITH: Final = (
    ("mlx_vlm", "pictures, embeddings and rerankers"),
    ("mlx_audio", "speech"),
    ("mcp", "MCP servers"),
)
"""Libraries, and what each of them serves."""

PARTS: Final[dict[Compat, frozenset[str]]] = {
    "mlx-vlm": frozenset({"mlx_vlm", "mlx_audio"}),
    "mlx-server": frozenset({"mlx_vlm"}),
    "mlx-openai-server": frozenset({"mlx_vlm", "mlx_audio"}),
    "vllm-mlx": frozenset({"mlx_vlm", "mlx_audio", "mcp"}),
    "mlx-lm": frozenset(),
}
"""The libraries behind each replaced server; the extra of the same name installs them."""


def missing_parts(compat: Compat | None) -> str | None:
    """One sentence on what the profile's server could serve and this installation can't; None if nothing is missing."""
    if compat is None or not (missing := list(_missing(PARTS[compat]))):
        return None
    served = ", ".join(missing)
    return f"Not installed here: what serves {served}. All that {compat} served: {install_command(compat)}"


def _missing(parts: frozenset[str]) -> Iterator[str]:
    for library, served in SERVED_WITH:
        if library in parts and importlib.util.find_spec(library) is None:
            yield served
