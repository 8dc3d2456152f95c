"""What only a CPU needs. `engines/device.py` decides whether it is used; no other room asks what the device is.

Begin with `kernels.py`.

- `kernels.py`: whether the kernels of the package `pippin-kernels` run on this machine; `engines/language/kernels/`
  puts models on them.
- `blas.py`: loads a fast BLAS library ahead of the one in MLX's wheel; `sharing.py`: how many threads it takes.
- `functions.py`: exp, sigmoid, erf, softmax and attention in place of MLX's own.
- `in_place.py`: the same for large arrays, and copies of blocks, by numpy in the memory of MLX arrays.
"""
