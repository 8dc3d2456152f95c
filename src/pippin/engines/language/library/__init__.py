"""Models with media that do not run in the engine's batches: mlx-vlm's own `generate` answers one request at a time.

What comes before and after is the same for all language models: `prompt/` makes the job, and `step/decoder.py` reads
the tokens. Begin with `engine.py`.

- `engine.py`: the queue, and the one request that is being answered; opens the engine.
- `fields.py`: which fields of a request and which options the library's loop follows.
- `autoregressive.py`: a loaded model that writes token by token, by mlx-vlm's `generate_step`.
"""
