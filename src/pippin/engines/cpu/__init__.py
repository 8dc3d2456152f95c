"""What only a CPU needs. `engines/device.py` decides whether it is used; no other room asks what the device is.

Begin with `kernels.py`.

- `blas.py`: loads a fast BLAS library ahead of the one in MLX's wheel.
- `kernels.py`: whether the kernels of the package `pippin-kernels` compute a model, in place of all that follows.
- `architectures.py`: the models of mlx-lm whose whole layers the kernels know; `description.py`: describes such a model
  to the kernels; `decoder.py`: runs it, called like mlx-lm's models.
- `encoder.py`: the layers of encoders, called like mlx-vlm's; `embedder.py`: embedding models that are decoders.
- `operations.py`: single layers by the kernels, in models of other architectures.
- `matrices.py`: weights of MLX's layers in the layout of the kernels.
- `functions.py`: exp, sigmoid, erf, softmax, attention and rotary embedding in place of MLX's own.
- `in_place.py`: the same for large arrays, and copies of blocks, by numpy in the memory of MLX arrays.
"""
