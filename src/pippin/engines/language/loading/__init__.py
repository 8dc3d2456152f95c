"""Makes an engine that is ready of a model folder. Begin with `engine.py`.

- `asked.py`: what is asked of a load: the model, its options, the device.
- `weights.py`: the model with its weights, in the way in which it runs, which is found by trying for one of mlx-vlm.
- `caching.py`: how sequences run together, the prefix cache, and the limits of a step.
- `drafting.py`: speculation, and what drafts for it.
- `engine.py`: the engine around all of this.
"""
