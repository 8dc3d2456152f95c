"""Finds model folders on this machine: in the Hugging Face cache, in the operator's folders, and among Pippin's
imports."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pippin.core.published import HUB_PREFIX, find_text

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
