"""Puts an accelerated BLAS in front of the one that MLX bundles, in a peer's process: all get the same."""

import ctypes
import os

for _library in filter(None, os.environ.get("BENCH_BLAS", "").split(":")):
    ctypes.CDLL(_library, mode=ctypes.RTLD_GLOBAL)
