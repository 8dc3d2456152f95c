"""A language model in memory: its weights, adapters and head. Begin with `weights.py`.

- `weights.py`: loads a model folder by mlx-lm or mlx-vlm, casts its weights, and explains what is wrong with it.
- `encoders.py`: what embeddings and rerankers are computed by: mlx-vlm's encoders, and language models without a head.
- `lora.py`: LoRA adapters, chosen for each sequence of a batch; `adapter_files.py`: what their files hold.
- `head.py`: logits of only the positions that are sampled from.
"""
