"""Where models lie on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CatalogRoots:
    hub: Path  # the Hugging Face cache: holds folders called models--org--name
    imports: Path  # what Pippin imported: one folder for each model


def default_roots(environment: Mapping[str, str], home: Path) -> CatalogRoots:
    """The usual places, moved by the same variables as Hugging Face's own tools, and by PIPPIN_HOME."""

    def folder(text: str) -> Path:
        return home / text[2:] if text.startswith("~/") else Path(text)

    cache = folder(environment.get("XDG_CACHE_HOME") or "~/.cache")
    hugging_face = folder(environment.get("HF_HOME") or str(cache / "huggingface"))
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    pippin = folder(environment.get("PIPPIN_HOME") or str(cache / "pippin"))
    return CatalogRoots(hub=folder(hub) if hub else hugging_face / "hub", imports=pippin / "models")
