"""The models of other programs on this machine: LM Studio's and oMLX's folders, and GGUF files of LM Studio and Ollama.
They are read where they lie, and never written."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pippin.catalog.scan import CatalogRoots, Found, Source, scan_folder
from pippin.config.environment import home as pippin_home
from pippin.core.published import object_in

FOLDERS: Final[tuple[tuple[Source, str], ...]] = (
    ("LM Studio", ".lmstudio/models"),
    ("LM Studio", ".cache/lm-studio/models"),
    ("oMLX", ".omlx/models"),
)
"""Where the programs keep models, each in a folder NAME or PUBLISHER/NAME."""

LM_STUDIO_SETTINGS: Final = ".lmstudio/settings.json"
OLLAMA: Final = ".ollama/models"
WEIGHTS: Final = "application/vnd.ollama.image.model"
REGISTRY, LIBRARY = "registry.ollama.ai", "library"
"""The parts of a manifest's path that Ollama leaves out of a name."""


def default_roots(environment: Mapping[str, str], home: Path) -> CatalogRoots:
    """The default folders, relocated by the same variables as Hugging Face's own tools and Ollama, by PIPPIN_HOME and
    by LM Studio's settings."""

    def folder(text: str) -> Path:
        return home / text[2:] if text.startswith("~/") else Path(text)

    cache = folder(environment.get("XDG_CACHE_HOME") or "~/.cache")
    hugging_face = folder(environment.get("HF_HOME") or str(cache / "huggingface"))
    found = [(source, home / folder) for source, folder in FOLDERS]
    if isinstance(moved := object_in(home / LM_STUDIO_SETTINGS).get("downloadsFolder"), str):
        found.append(("LM Studio", Path(moved)))
    ollama = environment.get("OLLAMA_MODELS")
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return CatalogRoots(
        hub=folder(hub) if hub else hugging_face / "hub",
        imports=pippin_home(environment) / "models",
        others=(*dict.fromkeys(found), ("Ollama", Path(ollama) if ollama else home / OLLAMA)),
    )


def scan_others(folders: tuple[tuple[Source, Path], ...]) -> Iterator[Found]:
    """Models in these folders. A GGUF file is found as a file, which `pippin import` makes a model of."""
    for source, folder in folders:
        if source == "Ollama":
            yield from _ollama(folder)
        else:
            yield from scan_folder(folder, source)
            yield from _files(folder, source)


def _files(folder: Path, source: Source) -> Iterator[Found]:
    """GGUF files in folders PUBLISHER/NAME; of one in several parts the first."""
    for path in sorted(folder.glob("*/*/*.gguf")):
        first = "-of-" not in path.stem or "-00001-of-" in path.stem
        if first and path.is_file() and not path.name.startswith("mmproj"):
            yield Found("/".join((*path.relative_to(folder).parts[:-1], path.stem)), path, source, path)


def _ollama(folder: Path) -> Iterator[Found]:
    """The file of each manifest's model, under the name that Ollama gives it."""
    manifests = folder / "manifests"
    for path in sorted(manifests.glob("*/*/*/*")):
        registry, space, name, tag = path.relative_to(manifests).parts
        layers = object_in(path).get("layers")
        digests = [
            layer["digest"]
            for layer in (layers if isinstance(layers, list) else [])
            if isinstance(layer, dict)
            and layer.get("mediaType") == WEIGHTS
            and isinstance(layer.get("digest"), str)
        ]
        if len(digests) != 1 or "/" in digests[0]:
            continue
        blob = folder / "blobs" / digests[0].replace(":", "-")
        shown = [registry] * (registry != REGISTRY) + [space] * (space != LIBRARY) + [name]
        if blob.is_file():
            yield Found(f"{'/'.join(shown)}:{tag}", blob, "Ollama", path)
