"""Converts a checkpoint into an MLX model, quantised or not, in less memory than the model takes.

Begin with `convert.py`: mlx-lm or mlx-vlm load lazily and quantise, and each shard is computed when it is written.
`draft_heads.py` keeps what those libraries drop. `perplexity.py` computes what `pippin verify` compares, on
`sample.txt`.
"""
