"""Finds model folders on this machine: in the Hugging Face cache, in the operator's folders, among Pippin's imports,
and those of other programs (LM Studio's and oMLX's folders, GGUF files of LM Studio and Ollama), which are read where
they lie, and never written."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pippin.config.environment import home as pippin_home
from pippin.core.published import HUB_PREFIX, find_text, object_in, table

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
        root, name = Path(entry.path), entry.name.removeprefix(HUB_PREFIX).replace("--", "/")
        snapshot = snapshot_of(root)
        if snapshot is not None and (_is_model(snapshot) or any(root.glob("blobs/*.incomplete"))):
            yield Found(name, snapshot, "hub", root)
        elif snapshot is not None:
            yield from _files(snapshot, "**/*.gguf", "hub", name)


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
            shown = [entry for entry in entries if not entry.name.startswith(".") and os.path.isdir(entry)]
    except OSError:
        return []
    return sorted(shown, key=lambda entry: entry.name)


LM_STUDIO: Final = (".lmstudio", ".cache/lm-studio")
LM_STUDIO_POINTER: Final = ".lmstudio-home-pointer"
"""A file with the path of the folder that LM Studio keeps all of its own in."""
OMLX: Final = ".omlx"
OLLAMA: Final = ".ollama/models"
LAYER: Final = "application/vnd.ollama.image."
PARTS: Final = ("model", "adapter", "tensor")  # layers that hold weights
DIGEST: Final = re.compile(r"sha256[:-][0-9a-f]+")
REGISTRY, LIBRARY = "registry.ollama.ai", "library"
"""The parts of a manifest's path that Ollama leaves out of a name."""


def default_roots(environment: Mapping[str, str], home: Path) -> CatalogRoots:
    """The default folders, relocated by the same variables as Hugging Face's own tools and Ollama, by PIPPIN_HOME and
    by the settings of LM Studio and oMLX."""

    def folder(text: str) -> Path:
        return home / text[2:] if text.startswith("~/") else Path(text)

    cache = folder(environment.get("XDG_CACHE_HOME") or "~/.cache")
    hugging_face = folder(environment.get("HF_HOME") or str(cache / "huggingface"))
    pointed = (find_text(home / LM_STUDIO_POINTER) or "").strip()
    studios = [*([folder(pointed)] if pointed else ()), *(home / each for each in LM_STUDIO)]
    moved = [object_in(studio / "settings.json").get("downloadsFolder") for studio in studios]
    of_omlx = table(object_in(home / OMLX / "settings.json").get("model"))
    several = of_omlx.get("model_dirs")
    told: dict[Source, list[object]] = {
        "LM Studio": [*(str(studio / "models") for studio in studios), *moved],
        "oMLX": [f"~/{OMLX}/models", of_omlx.get("model_dir")],
    }
    told["oMLX"] += several if isinstance(several, list) else []
    found = [
        (source, folder(each)) for source in told for each in told[source] if each and isinstance(each, str)
    ]
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return CatalogRoots(
        hub=folder(hub) if hub else hugging_face / "hub",
        imports=pippin_home(environment) / "models",
        others=(*dict.fromkeys(found), ("Ollama", folder(environment.get("OLLAMA_MODELS") or f"~/{OLLAMA}"))),
    )


def scan_others(folders: tuple[tuple[Source, Path], ...]) -> Iterator[Found]:
    """Models in these folders. A GGUF file is found as a file, which `pippin import` makes a model of."""
    for source, folder in folders:
        if source == "Ollama":
            yield from _ollama(folder)
        else:
            yield from scan_folder(folder, source)
            # In and below folders PUBLISHER/NAME.
            yield from _files(folder, "*/*/**/*.gguf", source)


def _files(folder: Path, pattern: str, source: Source, *above: str) -> Iterator[Found]:
    """GGUF files in a folder, of one in several parts the first, under their paths below `above`."""
    for path in sorted(folder.glob(pattern)):
        first = "-of-" not in path.stem or "-00001-of-" in path.stem
        if first and path.is_file() and "mmproj" not in path.name.lower():
            yield Found(
                "/".join((*above, *path.relative_to(folder).parts[:-1], path.stem)), path, source, path
            )


def _ollama(folder: Path) -> Iterator[Found]:
    """The file of each manifest's model, under the name that Ollama gives it, whether it is there or not."""
    manifests = folder / "manifests"
    for path in sorted(manifests.glob("*/*/*/*")):
        registry, space, name, tag = path.relative_to(manifests).parts
        layers = layers_of(path)
        shown = [registry] * (registry != REGISTRY) + [space] * (space != LIBRARY) + [name]
        first = next((layers[kind][0] for kind in PARTS if kind in layers), "")
        if DIGEST.fullmatch(first):
            blob = folder / "blobs" / first.replace(":", "-")
            yield Found(f"{'/'.join(shown)}:{tag}", blob, "Ollama", path)


def layers_of(manifest: Path) -> dict[str, list[str]]:
    """The digests of the layers in a manifest of Ollama, by what they are: `model`, `template`, `adapter`, ..."""
    listed, found = object_in(manifest).get("layers"), dict[str, list[str]]()
    for layer in map(table, listed if isinstance(listed, list) else ()):
        kind, digest = layer.get("mediaType"), layer.get("digest")
        if isinstance(kind, str) and kind.startswith(LAYER) and isinstance(digest, str):
            found.setdefault(kind.removeprefix(LAYER), []).append(digest)
    return found


def imported_as(name: str) -> str:
    """The name of the model that `pippin import` makes of a GGUF file with this name."""
    return re.sub("[/:]", "-", name).lower()


def unread(found: Found) -> str | None:
    """What is told of another program's model that can't be imported; None for a GGUF file."""
    if not found.folder.is_file():
        return f"The file of {found.id} is missing: fetch it with {found.source} again."
    layers = layers_of(found.root)
    parts = {kind: len(layers[kind]) for kind in PARTS if kind in layers}
    if parts in ({}, {"model": 1}):
        return None
    told = ", ".join(f"{kind}: {count}" for kind, count in parts.items())
    name = found.id.partition(":")[0].rpartition("/")[2]
    way = f"which are not read here: `pippin search {name}` finds its publisher's files."
    return f"{found.id} is not one GGUF file but layers of Ollama's ({told}), {way}"


def way_out(found: Found) -> str:
    """What is told of a GGUF file that a request or a person names."""
    return unread(found) or f"{found.id} is a GGUF file: `pippin import {found.id}` makes a model of it."
