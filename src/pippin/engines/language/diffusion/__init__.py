"""Diffusion language models, which write a block of an answer at once and refine it until it is done.

mlx-vlm's own loop writes, one request at a time. What comes before and after is the same for all language models:
`prompt/` makes the job (`prompt/diffusion.py` says which models these are, and which fields of a request each
supports), and `step/decoder.py` reads the tokens. Begin with `engine.py`.

- `model.py`: a loaded model, and mlx-vlm's loop around it.
- `engine.py`: the queue, and the one request that is being answered.
- `loading.py`: opens the engine from a model folder.
"""
