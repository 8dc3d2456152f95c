"""An adapter that lies beside the weights of a model: in which matrices it is merged, and how strongly."""

import math
from collections.abc import Iterator
from typing import Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.core.verification import Finding
from pippin.engines.language.model.adapter_files import file_of, read_changes
from pippin.engines.verify.findings import finding
from pippin.engines.verify.folder import Folder
from pippin.engines.verify.weights import EXPONENTS

SURE: Final = 1 / 6
"""The error of a strength with which 0 and 1 are three errors from what lies between them."""
OFF: Final = 0.25
ERRORS: Final = 4
"""A strength is another one than 1 if it is so far and so many errors away from it."""
LEAST_RANK: Final = 4


def check(folder: Folder) -> Iterator[Finding]:
    """Measure the strength of the adapter in each matrix that is no packed one."""
    if not file_of(folder.path).is_file():
        return
    try:
        changes = read_changes("beside", folder.path)
    except ServerError as error:
        yield finding("adapter-unread", reason=error.report.message)
        return
    found = []
    for read in changes:
        path, pair = read.name, read.change.pair
        if pair is None or read.change.magnitude is not None:
            continue
        name = next((each for each in folder.tensors if f".{each}".endswith(f".{path}.weight")), "")
        file, stored = folder.tensors.get(name, ("", None))
        sizes = (pair[1].shape[1], pair[0].shape[0])
        if stored is not None and stored.dtype in EXPONENTS and stored.shape == sizes:
            arrays = mx.load(str(folder.path / file))
            assert isinstance(arrays, dict)  # of a safetensors file
            parts = (arrays[name], *pair)
            share, apart = strength(*(np.array(each.astype(mx.float32)) for each in parts))
            found += [(share, apart)] if apart < SURE else []
    shares = [share for share, _ in found]
    off = [share for share, apart in found if abs(share - 1) > max(OFF, ERRORS * apart)]
    if off and max(shares) < 0.5:
        yield finding("adapter-beside", all=len(found))
    elif off:
        whole = len(found) - len(off)
        yield finding("adapter-partly", count=whole, all=len(found), least=min(shares), most=max(shares))


def strength(
    weight: NDArray[np.float32], down: NDArray[np.float32], up: NDArray[np.float32]
) -> tuple[float, float]:
    """How many times a pair [inside, rank], [rank, out] is in a matrix [out, inside], and the error of that.

    The pair's singular vectors u_k and v_k, of the values s_k, give u_k' W v_k = s_k where it is merged once, whatever
    it was added to gives the same spread of numbers for any u_j and v_k, and those of j other than k hold nothing of
    the pair: they tell the error. Few of them tell nothing.
    """
    if down.shape[1] < LEAST_RANK:
        return 0.0, math.inf
    left, inner = np.linalg.qr(up.T)
    right, outer = np.linalg.qr(down)
    turned, sizes, back = np.linalg.svd(inner @ outer.T)
    seen = (left @ turned).T @ weight @ (right @ back.T)
    spread = np.sqrt(np.square(seen[~np.eye(len(sizes), dtype=bool)]).mean())
    size = max(float(np.linalg.norm(sizes)), 1e-9)
    return float(np.diag(seen) @ sizes / size**2), float(spread / size)
