"""The weights of a language model beside those of another folder, such as the one before quantisation, as both are
computed: unpacked, and in the names and the form of the library's class."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import mlx.core as mx
from mlx.utils import tree_flatten

from pippin.core.verification import Finding
from pippin.engines.language.model.weights import cast_weights
from pippin.engines.verify.findings import finding
from pippin.engines.verify.reading.perplexity import in_float32, open_lazily
from pippin.engines.verify.weights import changed_in_part

UNLIKE: Final = {1: 0.05, 2: 0.7}
"""The distances from which vectors and matrices are other ones. Rounding to 16 bits makes 0.004, and a quantisation to
two bits about 0.5."""
MANY_TIMES: Final = 3
"""How much farther than most an unlike tensor is, so that a coarse quantisation is none."""


@dataclass(frozen=True)
class Weights:
    """The tensors of a model, none of which is read yet, and how each is stored."""

    tensors: dict[str, mx.array]
    forms: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> "Weights":
        """Raises `ServerError("load_failed")`."""
        model = open_lazily(folder)
        parts = ((name, getattr(part, "bits", ""), part) for name, part in model.named_modules())
        forms = {name: f"{bits} {part.weight.dtype}" for name, bits, part in parts if "weight" in part}
        cast_weights(model, in_float32())
        return cls(dict(tree_flatten(model.parameters())), forms)


def check(folder: Path, other: Path) -> Iterator[Finding]:
    """Compare all tensors that both have, one at a time. Raises `ServerError("load_failed")`."""
    mine, theirs = Weights.of(folder), Weights.of(other)
    gaps: dict[str, float] = {}
    limits: dict[str, float] = {}
    changed: dict[str, bool] = {}
    for name in [*mine.tensors]:
        one, another = mine.tensors.pop(name), theirs.tensors.pop(name, mx.zeros(0))
        if one.shape == another.shape:
            gap = gaps[name] = _distance(one, another)
            limits[name] = UNLIKE[1 if one.ndim == 1 else 2]
            part = name.rpartition(".")[0]
            if one.ndim > 1 and mine.forms.get(part) == theirs.forms.get(part):
                changed[name] = gap > 0
    yield from changed_in_part("partly-changed", changed)
    usual = MANY_TIMES * median(gaps.values()) if gaps else 0.0
    unlike = [name for name, gap in gaps.items() if not gap <= max(limits[name], usual)]
    if unlike:
        how = _difference(Weights.of(folder).tensors[unlike[0]], Weights.of(other).tensors, unlike)
        yield finding("tensors-unlike", count=len(unlike), all=len(gaps), name=unlike[0], how=how)


def _difference(one: mx.array, others: dict[str, mx.array], unlike: list[str]) -> str:
    """What became of the first of the tensors that are unlike."""
    own = others[unlike[0]]
    for name in unlike[1:]:
        if others[name].shape == one.shape and _distance(one, others[name]) < UNLIKE[1]:
            return f"it is the other's {name}"
    if one.ndim == 1 and float(mx.std(one - own)) < UNLIKE[1]:
        return f"each number differs by about {float(mx.mean(one - own)):.2g}"
    rows = [mx.sort(mx.linalg.norm(each.reshape(each.shape[0], -1), axis=-1)) for each in (one, own)]
    if one.ndim > 1 and _distance(rows[0], rows[1]) < UNLIKE[1]:
        return "its rows are in another order"
    return f"the distance is {_distance(one, own):.2g} of its size"


def _distance(one: mx.array, other: mx.array) -> float:
    """The distance of two tensors, as a part of the other's size."""
    apart, size = (mx.sqrt(mx.square(each).sum()) for each in (one - other, other))
    return float(apart / mx.maximum(size, 1e-9))
