"""The numbers in the weight files: none that is no number, no blank matrix, no layer twice."""

import dataclasses
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from mlx_lm.utils import _get_classes
from numpy.typing import NDArray

from pippin.core.safetensors import StoredArray
from pippin.core.verification import Finding
from pippin.engines.verify.files import LAYER, fault, warning
from pippin.engines.verify.folder import Folder

PIECE: Final = 64 << 20  # bytes that are read at a time
EXPONENTS: Final = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F800000),
}
"""The bits of a number's exponent. Where all of them are set, the number is NaN or infinite."""
PULL: Final = "pippin pull ORG/NAME"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Look:
    """What one reading of a tensor tells."""

    digest: bytes
    finite: bool
    blank: bool  # all of its bytes are zero, or all of its numbers the same


def check(folder: Folder, progress: Progress = lambda done, total: None) -> Iterator[Finding]:
    """Read all weights once. `progress` is told the bytes done and the bytes in all."""
    looks: dict[str, Look] = {}
    total = sum(_size(array) for _, array in folder.tensors.values())
    done = 0
    for name, (_, array) in folder.tensors.items():
        looks[name] = look_at(folder, name)
        done += _size(array)
        progress(done, total)
    broken = [name for name, look in looks.items() if not look.finite]
    if broken:
        yield fault(
            "not-finite",
            f"{len(broken)} tensors have numbers that are NaN or infinite, such as {broken[0]}.",
            "Every answer that meets them is noise.",
            PULL,
        )
    blank = [name for name, look in looks.items() if look.blank and len(folder.tensors[name][1].shape) > 1]
    if blank:
        yield fault(
            "blank-tensor",
            f"{len(blank)} matrices hold one number alone, such as {blank[0]}.",
            "A part of the model does nothing.",
            PULL,
        )
    yield from _layers_alike(folder, looks, set(blank))
    yield from _ignored_head(folder, looks)


def look_at(folder: Folder, name: str) -> Look:
    """Read one tensor, piece by piece. Raises `OSError`."""
    file, array = folder.tensors[name]
    header = folder.headers[file]
    assert header is not None
    digest, finite, first, blank = hashlib.blake2b(digest_size=16), True, None, True
    with (folder.path / file).open("rb") as opened:
        opened.seek(header.size + array.data_offsets[0])
        left = _size(array)
        while left > 0 and (read := opened.read(min(PIECE, left))):
            left -= len(read)
            digest.update(read)
            numbers: NDArray[np.unsignedinteger] = np.frombuffer(read, np.uint8)
            if array.dtype in EXPONENTS:
                kind, exponent = EXPONENTS[array.dtype]
                numbers = np.frombuffer(read, kind)
                finite = finite and not bool(((numbers & exponent) == exponent).any())
            if blank and len(numbers):
                first = numbers[0] if first is None else first
                blank = bool((numbers == first).all())
    return Look(digest.digest(), finite, blank and array.data_offsets[1] - array.data_offsets[0] > 8)


def partly_changed(folder: Folder, other: Folder) -> Iterator[Finding]:
    """Whether matrices of one kind are changed in some layers and the other folder's in the rest."""
    changed: dict[str, dict[str, bool]] = defaultdict(dict)
    for name in folder.tensors.keys() & other.tensors.keys():
        one, another = folder.tensors[name][1], other.tensors[name][1]
        if (
            LAYER.match(name)
            and len(one.shape) > 1
            and (one.dtype, one.shape) == (another.dtype, another.shape)
        ):
            same = look_at(folder, name).digest == look_at(other, name).digest
            changed[_kind(name)][name] = not same
    for kind, layers in sorted(changed.items()):
        if 0 < sum(layers.values()) < len(layers):
            yield warning(
                "partly-changed",
                f"{kind} differs from the other folder's in {sum(layers.values())} of {len(layers)} layers.",
                "A change, such as an adapter, was merged into a part of the layers alone.",
                "merge the adapter again, and compare with --against",
            )
            return


def _layers_alike(folder: Folder, looks: dict[str, Look], blank: set[str]) -> Iterator[Finding]:
    layers: dict[int, dict[str, bytes]] = defaultdict(dict)
    for name, look in looks.items():
        if (found := LAYER.match(name)) and len(folder.tensors[name][1].shape) > 1 and name not in blank:
            layers[int(found["number"])][_kind(name)] = look.digest
    seen: dict[tuple[tuple[str, bytes], ...], int] = {}
    for number, held in sorted(layers.items()):
        key = tuple(sorted(held.items()))
        if key and (first := seen.setdefault(key, number)) != number:
            yield warning(
                "layer-twice",
                f"The layers {first} and {number} have the same weights.",
                "Unless the publisher meant it, a layer was written twice and another is lost.",
                PULL,
            )
            return


def _ignored_head(folder: Folder, looks: dict[str, Look]) -> Iterator[Finding]:
    head = next((name for name in looks if re.search(r"(?:^|\.)lm_head\.weight$", name)), None)
    tied, embedding = folder.field("tie_word_embeddings"), folder.embedding
    if tied is not True or head is None or embedding is None or not _reads_ties(folder):
        return
    if looks[head].digest != looks[embedding].digest:
        yield fault(
            "head-ignored",
            "config.json says that the head is the embedding, and the files hold another head.",
            "The head in the files is left out.",
            'set "tie_word_embeddings": false in config.json',
        )


def _reads_ties(folder: Folder) -> bool:
    """Whether mlx-lm goes by the field; its other architectures have one way, or go by what the files hold."""
    try:
        return "tie_word_embeddings" in {
            each.name for each in dataclasses.fields(_get_classes(folder.config)[1])
        }
    except (ValueError, KeyError):
        return False


def _kind(name: str) -> str:
    """A tensor's name without the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", name, count=1)


def _size(array: StoredArray) -> int:
    return array.data_offsets[1] - array.data_offsets[0]
