"""Models whose layers Pippin's own kernels for CPUs compute (the package `pippin-kernels`). Begin with `ways.py`.

- `ways.py`: by which way the kernels compute a model, the model on the kernels, and whether they give what the
  libraries give.
- `architectures.py`: the models of mlx-lm whose whole layers the kernels know; `description.py`: describes such a model
  to the kernels; `decoder.py`: runs it, called like mlx-lm's models, and knows where in memory the caches of its
  layers are written.
- `operations.py`: single layers by the kernels, in models of other architectures.
- `matrices.py`: weights of MLX's layers in the layout of the kernels.
"""
