"""Which Mage-Flow a folder has: one that generates or one that edits, and in how many steps.

mlx-vlm 0.7.10 looks for `edit`, `turbo` and `base` in the whole path, so that a model below `/data/edited` edits. Here
only the model's own name counts.
"""

import json
from pathlib import Path

HUB_PREFIX = "models--"


def variant_of(folder: Path) -> str:
    """The name of mlx-vlm's variant: as its conversion recorded it, or else as the folder's own name tells."""
    try:
        written = json.loads((folder / "mlx_mage_flow.json").read_text()).get("variant")
    except (OSError, ValueError, AttributeError):
        written = None
    if written:
        return str(written)
    name = own_name(folder).lower()
    edit = "-edit" if "edit" in name else ""
    steps = next((f"-{word}" for word in ("turbo", "base") if word in name), "")
    return f"mage-flow{edit}{steps}"


def own_name(folder: Path) -> str:
    """The last component of the path, or the repository's name in the cache of huggingface_hub."""
    root = folder.parent.parent
    if folder.parent.name == "snapshots" and root.name.startswith(HUB_PREFIX):
        return root.name.rsplit("--", 1)[-1]
    return folder.name
