"""Finds model folders on this machine: in the Hugging Face cache, in the operator's folders, among Pippin's imports,
and those of other programs (LM Studio's and oMLX's folders, GGUF files of LM Studio and Ollama), which are read where
they lie, and never written."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pippin.config.environment import home as pippin_home
from pippin.core.published import HUB_PREFIX, find_text, object_in

Source = Literal["hub", "folder", "import", "operator", "LM Studio", "oMLX", "Ollama"]
MARKS: Final = ("config.json", "model_index.json", "modules.json")


@dataclass(frozen=True)
class CatalogRoots:
    hub: Path  # the Hugging Face cache: contains folders named models--org--name
    imports: Path  # Pippin's imports: one folder for each model
    others: tuple[tuple[Source, Path], ...] = ()  # of other programs


@dataclass(frozen=True)
class Found:
    """A folder that looks like a model, or a GGUF file of another program. `root` is the folder to delete with it."""

    id: str
    folder: Path
    source: Source
    root: Path

    @property
    def is_gguf(self) -> bool:
        return self.source == "Ollama" or self.folder.suffix == ".gguf"


def scan_hub(hub: Path) -> Iterator[Found]:
    """Models in huggingface_hub's layout: models--org--name/{refs,snapshots,blobs}. No network."""
    for entry in _folders(hub):
        if not entry.name.startswith(HUB_PREFIX):
            continue
        root = Path(entry.path)
        snapshot = snapshot_of(root)
        if snapshot is not None and (_is_model(snapshot) or any(root.glob("blobs/*.incomplete"))):
            yield Found(entry.name.removeprefix(HUB_PREFIX).replace("--", "/"), snapshot, "hub", root)


def scan_folder(folder: Path, source: Source) -> Iterator[Found]:
    """The folder itself if it is a model, else models one or two levels below it (name, or org/name)."""
    if _is_model(folder):
        yield Found(folder.name, folder, source, folder)
        return
    for entry in _folders(folder):
        path = Path(entry.path)
        below = [path] if _is_model(path) else [Path(inner.path) for inner in _folders(path)]
        for model in filter(_is_model, below):
            yield Found(model.relative_to(folder).as_posix(), model, source, model)


def hub_folder(hub: Path, repository: str) -> Path:
    return hub / (HUB_PREFIX + repository.replace("/", "--"))


def snapshot_of(root: Path) -> Path | None:
    """The snapshot that `main` points to, else the newest."""
    snapshots = root / "snapshots"
    commit = (find_text(root / "refs" / "main") or "").strip()
    if commit and commit.isalnum() and (snapshots / commit).is_dir():
        return snapshots / commit
    newest = max(_folders(snapshots), key=lambda entry: entry.stat().st_mtime, default=None)
    return None if newest is None else Path(newest.path)


def other_snapshots(folder: Path) -> list[Path]:
    """The other snapshots beside one in the Hub's cache; none for any other folder."""
    if folder.parent.name != "snapshots":
        return []
    return [Path(entry.path) for entry in _folders(folder.parent) if entry.name != folder.name]


def _is_model(folder: Path) -> bool:
    # lexists: a dangling config.json link belongs to a damaged model, which should be listed.
    return any(os.path.lexists(folder / mark) for mark in MARKS)


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    """The folders in a folder, sorted by name; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
    except OSError:
        return []
    return sorted(shown, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


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
