"""How token states become one vector, as a folder's sentence-transformers files say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pippin.core.decoding import from_json
from pippin.engines.encoding import read_json


@dataclass(frozen=True)
class Pooling:
    config: dict[str, Any]
    normalize: bool

    @property
    def mode(self) -> str:
        """The first that is on: `mean_tokens`, `lasttoken`, `cls_token` and so on."""
        named = self.config.get("pooling_mode")
        if isinstance(named, str):
            return named
        prefix = "pooling_mode_"
        on = (
            key.removeprefix(prefix) for key, value in self.config.items() if value is True and prefix in key
        )
        return next(on, "mean_tokens")


def read_pooling(folder: Path) -> Pooling | None:
    """From `modules.json` and `1_Pooling/config.json`; None where the folder has none."""
    modules = folder / "modules.json"
    if not modules.exists():
        return None
    listed = from_json(modules.read_bytes(), list[dict[str, Any]])
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in listed]
    paths = {kind: str(module.get("path", "")) for kind, module in zip(kinds, listed, strict=True)}
    config = read_json(folder / paths["Pooling"] / "config.json") if "Pooling" in paths else {}
    return Pooling(config or {"pooling_mode": "mean"}, "Normalize" in kinds)
