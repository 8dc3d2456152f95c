"""Reads the header of a safetensors file, which lists its arrays (https://github.com/huggingface/safetensors#format),
finds the files of a checkpoint, and digests them."""

import hashlib
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from pippin.core.decoding import convert, from_json
from pippin.core.published import name_of, object_in

LARGEST_HEADER: Final = 64 * 1024**2  # bytes
NAMES: Final = {1: "BOOL F8_E4M3 F8_E8M0 I8 U8", 2: "BF16 F16 I16 U16", 4: "F32 I32 U32", 8: "C64 I64 U64"}
WIDTHS: Final = {name: width for width, names in NAMES.items() for name in names.split()}
"""Bytes of a number, by the types that MLX reads."""


class StoredArray(Struct, frozen=True):
    dtype: str  # such as "BF16"
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # byte range of the data, counted from the end of the header


class Header(Struct, frozen=True):
    arrays: dict[str, StoredArray]
    size: int  # bytes of the header, including the eight that hold its length
    metadata: dict[str, str]  # texts that the writer added

    @property
    def file_size(self) -> int:
        """Size that the whole file must have, in bytes."""
        return self.size + max((array.data_offsets[1] for array in self.arrays.values()), default=0)

    @property
    def fault(self) -> str | None:
        """What is wrong with an array, as the end of a sentence: safetensors lie one behind the other."""
        end = 0
        for name, array in sorted(self.arrays.items(), key=lambda each: each[1].data_offsets):
            begin, stop = array.data_offsets
            if (width := WIDTHS.get(array.dtype)) is None:
                return f"holds {name} in numbers of the type {array.dtype}, which MLX does not read"
            if begin < end or min(array.shape, default=0) < 0 or stop - begin != width * prod(array.shape):
                return f"says of {name} that it lies where its numbers cannot be: fetch it again"
            end = stop
        return None


def find_header(path: Path) -> Header | None:
    """The header of a file; None if it is damaged or cannot be read."""
    try:
        if not path.is_file():  # opening a pipe would block
            return None
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            listed = from_json(file.read(length), dict[str, Any]) if length <= LARGEST_HEADER else None
        if listed is None:
            return None
        # MLX writes null where there is nothing to tell.
        metadata = convert(listed.pop("__metadata__", None) or {}, dict[str, str])
        return Header(convert(listed, dict[str, StoredArray]), 8 + length, metadata)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def find_whole(path: Path) -> Header | None:
    """The header of a file that has all of its arrays; None for any other. Raises `OSError`."""
    header = find_header(path)
    return header if header is not None and path.stat().st_size >= header.file_size else None


INDEX: Final = "model.safetensors.index.json"


class WeightFiles(Struct, frozen=True):
    """The files that hold a model's weights, and the file of each tensor."""

    files: tuple[Path, ...]
    owners: dict[str, Path]


BESIDE_MODELS: Final = ("consolidated", "adapter")
BESIDE_PARTS: Final = ("original", "checkpoint-")
"""How the names of files beside `model*.safetensors` begin, and those of folders, which are no parts of a model."""


def index_of(folder: Path) -> dict[str, str]:
    """The name of the file of each tensor, as a folder's index has it; empty without a usable one."""
    found = object_in(folder / INDEX).get("weight_map")
    return {name: str(file) for name, file in found.items()} if isinstance(found, dict) else {}


def missing_shards(folder: Path) -> list[str]:
    """The files that an index names and a folder lacks. None for an index of other files than these, as conversions
    have kept their source's: none of its files is there, or all of its tensors are there without the missing ones."""
    index = index_of(folder)
    there = {path.name for path in folder.glob("*.safetensors") if path.is_file()}
    missing = sorted(set(index.values()) - there)
    others = any(name.startswith("model") for name in there) and there.isdisjoint(index.values())
    if not missing or others or index.keys() <= _tensors(folder / name for name in there).keys():
        return []
    return missing


def stored_weights(folder: Path) -> list[Path]:
    """The safetensors files of a model and of its parts in folders of their own, without those that only other programs
    read: the publisher's own form of the same weights, adapters, and states of a training."""
    top = sorted(folder.glob("*.safetensors"))
    if any(path.name.startswith("model") for path in top):
        top = [path for path in top if not path.name.startswith(BESIDE_MODELS)]
    inner = sorted(folder.glob("*/*.safetensors"))
    return top + [path for path in inner if not path.parent.name.startswith(BESIDE_PARTS)]


def instead(folder: Path) -> str | None:
    """What a folder without `model*.safetensors` has in their place, and the way out, as a sentence."""
    found = {path.suffix: path for path in sorted(folder.glob("*"), reverse=True)}
    if (named := found.get(".safetensors")) is not None:
        return (
            f"{named.name} is not read. If its tensors have transformers' names, call it model.safetensors."
        )
    if (gguf := found.get(".gguf")) is not None:
        return f"`pippin import {gguf}` makes a model of its GGUF file."
    kinds = (".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".h5", ".msgpack")
    other = next((found[kind].name for kind in kinds if kind in found), None)
    if other is None:
        return None
    way = f"`pippin search {name_of(folder).rpartition('/')[2]}` looks for its conversion to MLX."
    if other.startswith("pytorch_model"):
        # With its head, which another class would leave out.
        classes = str(object_in(folder / "config.json").get("architectures") or HEADS[0])
        kind = next((end for end in HEADS if end in classes), "")
        saving = f"Model.from_pretrained('{folder}').save_pretrained('{folder}')"
        way += (
            " Or have transformers save it as safetensors beside them: "
            f'python -c "from transformers import AutoModel{kind} as Model; {saving}"'
        )
    return f"they are in {other}, which is not read. {way}"


HEADS: Final = ("ForCausalLM", "ForMaskedLM", "ForSequenceClassification")
"""How the names of transformers' classes end that have a head for a use."""


def weight_files(folder: Path) -> WeightFiles:
    """The files of the index, if they hold all of its tensors, else all `model*.safetensors`, else all others. Raises
    `ValueError` where files are missing, or where two of the others hold the same tensor. Raises `OSError`."""
    index = index_of(folder)
    if missing := missing_shards(folder):
        raise ValueError(
            f"{len(missing)} of {len(set(index.values()))} files are missing ({', '.join(missing[:3])})"
        )
    named = [folder / name for name in sorted(set(index.values()))]
    if named and all(path.is_file() for path in named):
        holds = {path: _tensors([path]).keys() for path in named}
        if all(name in holds[folder / file] for name, file in index.items()):
            owners = {name: path for path, names in holds.items() for name in names}
            return WeightFiles(tuple(named), owners | {name: folder / file for name, file in index.items()})
    there = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    named_so = [path for path in there if path.name.startswith("model")]
    files = named_so or [path for path in there if not path.name.startswith(BESIDE_MODELS)]
    held = _tensors(files)
    for path in reversed(files):
        if twice := next((name for name in _tensors([path]) if held[name] != path), None):
            raise ValueError(
                f"{path.name} and {held[twice].name} both hold {twice}, and no index says which counts: move the file "
                "away that belongs to another model"
            )
    return WeightFiles(tuple(files), held)


def _tensors(files: Iterable[Path]) -> dict[str, Path]:
    """The file of each tensor; the last one where several hold it."""
    found: dict[str, Path] = {}
    for path in files:
        header = find_header(path)
        found |= dict.fromkeys(header.arrays if header is not None else (), path)
    return found


SAMPLE: Final = 1 << 10  # bytes
CONFIGURATIONS: Final = ("config.json", "adapter_config.json", "*processor*.json", "*.py")


def digest_of(folder: Path, *details: str) -> str:
    """Identifies a folder's configuration and weights, plus `details`. Hashes the files that say how a model computes,
    and of each array its name and the bytes in its middle: a fine-tune has the shapes of its base, and many arrays of
    it. Raises `OSError`."""
    digest = hashlib.blake2b("\0".join(details).encode(), digest_size=12)
    for path in sorted(path for pattern in CONFIGURATIONS for path in folder.glob(pattern)):
        digest.update(path.name.encode() + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        if (header := find_header(path)) is None:
            continue
        with path.open("rb", buffering=0) as file:
            for name, array in header.arrays.items():
                begin, end = array.data_offsets
                file.seek(header.size + max(begin, (begin + end - SAMPLE) // 2))
                digest.update(name.encode() + file.read(SAMPLE))
    return digest.hexdigest()
