"""Mixtures of experts that lie on the disk (`config/repacked.py`).

mlx-vlm's `moe_offload` keeps experts on the disk. Its layer asks the router which experts a chunk needs, reads those
that are not in memory, and computes with them; so a step is computed layer by layer, and waits for the disk.
"""

from pathlib import Path
from typing import Any

import mlx.nn as nn

from pippin.config.errors import install_command
from pippin.config.repacked import ExpertMemory, expert_files, expert_memory, expert_paths, is_repacked
from pippin.core.errors import ServerError
from pippin.core.models import ExpertStats, ModelInfo
from pippin.core.safetensors import read_header
from pippin.engines.language.vision import checkpoint

OPTION = "expert_cache_gb"
REPACK = "python -m mlx_vlm.moe_offload --build FOLDER --out NEW_FOLDER"


def memory_for_experts(info: ModelInfo, wanted_gb: float | None, there: int) -> ExpertMemory | None:
    """The memory for experts of a repacked checkpoint; None for any other. `there`: bytes that the model may take.

    Raises `ServerError("load_failed")` if experts shall stay on the disk and cannot, or if they lie there and the model
    cannot run.
    """
    folder = Path(info.path or "")
    if not is_repacked(folder):
        if wanted_gb is None:
            return None
        raise _refused(
            info,
            f"all its experts, if it has any, are in memory: {OPTION} is for checkpoints that mlx-vlm has repacked "
            f"({REPACK}). Start without it, or repack the model",
        )
    if not checkpoint.has_extra():
        message = f"it was repacked by mlx_vlm.moe_offload, which runs it: {install_command('vision')}"
        raise _refused(info, message)
    if checkpoint.family_of(checkpoint.read_config(folder)) is None:
        known = (
            f"the installed mlx-vlm has no model of the architecture {info.architecture!r} that writes text"
        )
        raise _refused(info, f"it was repacked by mlx_vlm.moe_offload, and {known}")
    damaged = next((path for path in expert_paths(folder) if not _is_whole(path)), None)
    if damaged is not None:
        raise _refused(info, f"{damaged.name} of its experts is cut off: copy or repack it again")
    wanted = None if wanted_gb is None else int(wanted_gb * 1e9)
    return expert_memory(expert_files(folder), wanted, there)


def refuse_repacked(info: ModelInfo) -> None:
    """Raises `ServerError("load_failed")` for a repacked checkpoint, where experts cannot stay on the disk."""
    if is_repacked(Path(info.path or "")):
        raise _refused(
            info,
            "it was repacked by mlx_vlm.moe_offload, and experts stay on the disk only of a language model that writes "
            "token by token, in one process: use the checkpoint that it was made from",
        )


def _refused(info: ModelInfo, reason: str) -> ServerError:
    return ServerError("load_failed", f"The model {info.id!r} cannot be loaded: {reason}.", OPTION)


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        header = read_header(file)
    return header is not None and path.stat().st_size >= header.file_size


def held_bytes(model: nn.Module) -> int:
    """The most bytes of memory that experts on the disk take; 0 for any other model."""
    stats, folder = expert_stats(model), getattr(_inner(model), "model_path", None)
    if stats is None or folder is None:
        return 0
    return expert_memory(expert_files(Path(folder)), stats.budget_bytes, 0).bytes


def expert_stats(model: nn.Module) -> ExpertStats | None:
    store = getattr(_inner(model), "moe_offload_store", None)
    if store is None:
        return None
    found: dict[str, Any] = store.stats()
    return ExpertStats(**{name: found[name] for name in ExpertStats.__struct_fields__})


def _inner(model: nn.Module) -> Any:
    """mlx-vlm's model, if there is one."""
    return getattr(model, "inner", None)
