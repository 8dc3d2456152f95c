"""What is wrong or missing in the models of mlx-lm and mlx-vlm, and is mended here.

A file of `mlx_lm/` mends one of mlx-lm's architectures, a file of `mlx_vlm/` one of mlx-vlm's families. It has the name
that they have there, and records of what it mends in `MENDS`. `patches/` has each fault's mend as a patch that can be
sent to the library. Begin with `mends.py`.
"""
