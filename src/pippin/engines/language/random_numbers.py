"""The random numbers of a row: each is a hash of the row's seed and of its place, so it depends on no neighbour."""

import numpy as np
from numpy.typing import NDArray


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of a request; choice 0 has the request's own."""
    return (seed + choice * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.uint64], stream: int) -> NDArray[np.float32]:
    """Numbers in [0, 1), one for each seed and position (SplitMix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        mixed = seeds
        for word in (positions, np.full_like(positions, stream)):
            mixed = mixed + (word + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return ((mixed >> np.uint64(40)).astype(np.float64) / 2**24).astype(np.float32)
