"""What only a CPU needs. `engines/device.py` decides whether it is used; no other room asks what the device is.

Begin with `kernels.py`.

- `blas.py`: loads a fast BLAS library ahead of the one in MLX's wheel.
- `kernels.py`: whether the kernels of the package `pippin-kernels` compute a model, in place of all that follows.
- `architectures.py`: the models of mlx-lm that they know; `decoder.py`: such a model, called as mlx-lm's are;
  `encoder.py`: the layers of encoders, called as mlx-vlm's are; `matrices.py`: their weights.
- `functions.py`: exp, sigmoid, erf, softmax, attention and rotary embedding in place of MLX's own.
- `in_place.py`: the same for large arrays, and copies of blocks, by numpy in the memory of MLX arrays.
"""
