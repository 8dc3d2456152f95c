"""Diffusion language models, which write a block of an answer at once and go over it until it stands.

mlx-vlm's own loop writes, one request after the other; what comes before and after is the same as of all language
models: `prompt/` makes the job (`prompt/diffusion.py` says which models these are, and what of a request each can do),
`step/decoder.py` reads the tokens. Begin with `engine.py`.

- `model.py`: a loaded model, and mlx-vlm's loop around it.
- `engine.py`: the queue, and the one request that is being answered.
- `loading.py`: from a folder to the engine.
"""
