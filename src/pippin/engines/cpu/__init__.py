"""What only a CPU needs. `engines/device.py` decides whether it is used; no other room asks what the device is.

Begin with `kernels.py`.

- `kernels.py`: whether the kernels of the package `pippin-kernels` run on this machine; `engines/language/kernels/`
  puts models on them.
- `blas.py`: loads a fast BLAS library ahead of the one in MLX's wheel.
- `functions.py`: exp, sigmoid, erf, softmax and attention of large arrays by numpy, in place of MLX's own.
"""
