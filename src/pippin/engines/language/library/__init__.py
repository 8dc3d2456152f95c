"""Models whose answers mlx-vlm's own loops write, one request at a time.

These are diffusion language models, which write a block of an answer at once and refine it until it is done, and models
with media that do not run in the engine's batches. What comes before and after is the same for all language models:
`prompt/` makes the job (`prompt/loops.py` says which fields of a request each loop follows), and `step/decoder.py`
reads the tokens. Begin with `engine.py`.

- `engine.py`: the queue, and the one request that is being answered.
- `autoregressive.py`: a loaded model that writes token by token, by mlx-vlm's `generate_step`.
- `diffusion.py`: a loaded diffusion language model, and mlx-vlm's loop around it.
- `loading.py`: opens the engine.
"""
