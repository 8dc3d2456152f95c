"""Checkpoints repacked by `mlx_vlm.moe_offload`: each layer's experts are in a file of their own, from which the
experts that the router chooses are read at run time. This module recognises such folders and plans their memory.

The format is mlx-vlm's (0.7.10, `moe_offload.repack`): `resident-*.safetensors` with all other weights, an
`offload_index.json`, and `experts/layer_NNNN.safetensors` with three matrices for each expert.
"""

from pathlib import Path
from typing import Final

from msgspec import Struct

from pippin.core.safetensors import find_header

INDEX: Final = "offload_index.json"
RESIDENT: Final = "resident-*.safetensors"
EXPERTS: Final = "experts"
IN_USE: Final = 2
"""Copies of one layer's experts that a prompt chunk holds in addition to the cached ones: as read, and stacked for the
matrix product."""


class ExpertFiles(Struct, frozen=True):
    """Sizes of the experts on disk, in bytes."""

    all: int
    largest_layer: int


class ExpertMemory(Struct, frozen=True):
    """Memory for experts, in bytes."""

    kept: int  # cached until others need the room
    in_use: int  # those of the running layer

    @property
    def bytes(self) -> int:
        return self.kept + self.in_use


def is_repacked(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def expert_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{EXPERTS}/layer_*.safetensors"))


def expert_files(folder: Path) -> ExpertFiles:
    """Sizes of the experts, from the headers of their files; unreadable files count nothing."""
    headers = [header for path in expert_paths(folder) if (header := find_header(path)) is not None]
    sizes = [header.file_size - header.size for header in headers]
    return ExpertFiles(sum(sizes), max(sizes, default=0))


def expert_memory(files: ExpertFiles, wanted: int | None, there: int) -> ExpertMemory:
    """`wanted`: bytes that the operator grants to experts, if set; by default they get half of `there`, the bytes that
    the model may take. Never more than the size of all experts."""
    kept = min(files.all, there // 2 if wanted is None else wanted)
    return ExpertMemory(max(kept, 1), min(IN_USE * files.largest_layer, IN_USE * files.all))
