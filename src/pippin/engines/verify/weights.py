"""The numbers in the weight files: none that is no number, nothing blank, no matrix twice, no row of another word."""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import mlx.core as mx
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pippin.core.published import table
from pippin.core.safetensors import StoredArray
from pippin.core.verification import Finding
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.upstream.stored import HEAD
from pippin.engines.verify.files import LAYER, arguments_of
from pippin.engines.verify.findings import finding
from pippin.engines.verify.folder import Folder

PIECE: Final = 64 << 20  # bytes that are read at a time
EXPONENTS: Final[dict[str, tuple[Any, int]]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F800000),
    "F8_E4M3": (np.uint8, 0x7F),  # with the number itself
}
"""The bits of a number's exponent. Where all of them are set, the number is NaN or infinite."""
SPARE: Final = {"F16": 0x7, "F32": 0x1FFF}
"""The last bits of a number that one of fewer bits, BF16 or F16, does not fill when it is stored so."""
PARAMETER: Final = re.compile(r"\.weight$|\.\d+\..*\.bias$")
"""What is trained: weights, and the biases of layers."""
MOST_SPARE: Final = 0.9  # of the numbers of a matrix; of one that fills them it is an eighth
WORD: Final = re.compile(r"[Ġ▁]?[a-zA-Z]{4,}")
PARTS: Final = 12  # of the vocabulary
LEAST: Final = 25  # pairs of a part
TRAINED: Final = 0.2
"""How much nearer words are to their plurals than to others, in cosines: 0.53 to 0.73 in each part of SmolLM2 and
MiniLM, and within 0.02 of 0 where rows are not the words'."""
LOST: Final = 0.1  # of the best part


class Look(Struct, frozen=True):
    """What one reading of a tensor tells."""

    digest: bytes
    finite: bool
    blank: bool  # one number alone
    zero: bool
    spare: bool  # its numbers were once stored in fewer bits


def check(folder: Folder, progress: Callable[[int, int], None]) -> Iterator[Finding]:
    """Read all weights once. `progress` is told the bytes done and the bytes in all."""
    looks: dict[str, Look] = {}
    total, done = sum(_size(array) for _, array in folder.tensors.values()), 0
    for name, (_, array) in folder.tensors.items():
        looks[name] = look_at(folder, name)
        done += _size(array)
        progress(done, total)
    matrices = {name: look for name, look in looks.items() if len(folder.tensors[name][1].shape) > 1}
    broken = [name for name, look in looks.items() if not look.finite]
    # Norms of some models are trained from zero; not where those of other layers are not.
    kept = {kind_of(name) for name, look in looks.items() if not look.zero}
    norms = {name: look for name, look in looks.items() if "norm" in name}
    if not any(look.zero for name, look in norms.items() if LAYER.match(name)):
        kept |= norms.keys()
    blank = [
        name
        for name, look in looks.items()
        if (look.blank and name in matrices)
        or (look.zero and kind_of(name) in kept and PARAMETER.search(name))
    ]
    for code, names in (("not-finite", broken), ("blank-tensor", blank)):
        if names:
            yield finding(code, count=len(names), name=names[0])
    filled = {name: look for name, look in matrices.items() if not look.blank}
    yield from _matrices_alike(filled)
    yield from changed_in_part("partly-finer", {name: not look.spare for name, look in filled.items()})
    head = next((looks[name] for name in looks if HEAD.search(name)), None)
    embedding = looks.get(folder.embedding or "")
    # Other architectures have one way alone, or go by what the files hold.
    tied = folder.field("tie_word_embeddings") is True and "tie_word_embeddings" in arguments_of(folder)
    if tied and head is not None and embedding is not None and head.digest != embedding.digest:
        yield finding("head-ignored")


def check_rows(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    """Find parts of a trained matrix in which no row is its word's."""
    ids = tokenizer.backend.get_vocab(with_added_tokens=False)
    words = (word for word in ids if WORD.fullmatch(word) and f"{word}s" in ids)
    pairs = np.array(sorted(((ids[word], ids[f"{word}s"]) for word in words), key=max))
    head = next((name for name in folder.tensors if HEAD.search(name)), None)
    for name in filter(None, (folder.embedding, head)):
        if len(pairs) < PARTS * LEAST or pairs.max() >= folder.tensors[name][1].shape[0]:
            return
        try:
            one, other = np.split(_rows(folder, name, pairs.T.ravel()), 2)
        except ValueError:  # bits that do not fit, which other findings tell
            continue
        gaps = (one * other).sum(1) - (one * np.roll(other, LEAST, 0)).sum(1)
        parts = [float(part.mean()) for part in np.array_split(gaps, PARTS)]
        lost = [place for place, part in enumerate(parts) if part < LOST * max(parts)]
        if lost and max(parts) > TRAINED:
            id_ = int(np.array_split(pairs, PARTS)[lost[0]].max(1)[0])
            yield finding("rows-displaced", name=name, id=id_, count=len(lost), all=PARTS)


def _rows(folder: Folder, name: str, ids: Any) -> Any:
    """Rows of a matrix as they are computed with, of length 1 and apart from what they have in common."""
    arrays: Any = mx.load(str(folder.path / folder.tensors[name][0]))
    part = name.removesuffix(".weight")
    packed = [
        arrays[each][mx.array(ids)] for each in (name, f"{part}.scales", f"{part}.biases") if each in arrays
    ]
    settings = table(folder.config.get("quantization"))
    own = table(settings.get(part)) or settings
    how = {each: own[each] for each in ("bits", "group_size", "mode") if each in own}
    rows = np.array((mx.dequantize(*packed, **how) if len(packed) > 1 else packed[0]).astype(mx.float32))
    rows -= rows.mean(0)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def look_at(folder: Folder, name: str) -> Look:
    """Read one tensor, piece by piece. Raises `OSError`."""
    file, array = folder.tensors[name]
    header = folder.headers[file]
    assert header is not None
    kind, exponent = EXPONENTS.get(array.dtype, (np.uint8, 0))
    digest, finite, blank, left = hashlib.blake2b(digest_size=16), True, True, _size(array)
    unfilled, spare = 0, SPARE.get(array.dtype, 0)
    first: NDArray[Any] | None = None
    with (folder.path / file).open("rb") as opened:
        opened.seek(header.size + array.data_offsets[0])
        while left > 0 and (read := opened.read(min(PIECE, left))):
            left -= len(read)
            digest.update(read)
            numbers = np.frombuffer(read, kind)
            first = numbers[:1] if first is None else first
            finite = finite and not (exponent and bool(((numbers & exponent) == exponent).any()))
            blank = blank and bool((numbers == first).all())
            unfilled += int(np.count_nonzero((numbers & spare) == 0)) if spare else 0
    zero = blank and first is not None and not first.any()
    coarse = unfilled > MOST_SPARE * math.prod(array.shape)
    return Look(digest.digest(), finite, blank and _size(array) > 8, zero, coarse)


def _matrices_alike(looks: dict[str, Look]) -> Iterator[Finding]:
    """The first matrix of a layer that is another one's. Masks and tables, which layers share, are no weights."""
    seen: dict[bytes, str] = {}
    for name, look in looks.items():
        is_weight = LAYER.match(name) and name.endswith(".weight")
        if is_weight and (first := seen.setdefault(look.digest, name)) != name:
            yield finding("matrix-twice", one=first, other=name)
            return


def changed_in_part(code: str, changed: dict[str, bool]) -> Iterator[Finding]:
    """The first kind of matrix of which some layers' were changed and others' not."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    for name in filter(LAYER.match, changed):
        kinds[kind_of(name)].append(changed[name])
    for kind, layers in kinds.items():
        if 0 < sum(layers) < len(layers):
            yield finding(code, kind=kind, changed=sum(layers), all=len(layers))
            return


def kind_of(name: str) -> str:
    """A tensor's name without the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", name, count=1)


def _size(array: StoredArray) -> int:
    return array.data_offsets[1] - array.data_offsets[0]
