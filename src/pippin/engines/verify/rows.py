"""The rows of an embedding and of a head against the vocabulary: a word's row is like that of its plural."""

import re
from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import numpy as np

from pippin.core.published import table
from pippin.core.verification import Finding
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.upstream.stored import HEAD
from pippin.engines.verify.findings import finding
from pippin.engines.verify.folder import Folder

WORD: Final = re.compile(r"[Ġ▁]?[a-zA-Z]{4,}")
PARTS: Final = 12  # of the vocabulary
LEAST: Final = 25  # pairs of a part
TRAINED: Final = 0.2
"""How much nearer words are to their plurals than to others, in cosines: 0.53 to 0.73 in each part of SmolLM2 and
MiniLM, and within 0.02 of 0 where rows are not the words'."""
LOST: Final = 0.1  # of the best part


def check(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
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
