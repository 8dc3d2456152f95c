"""Pictures, clips and recordings in the prompts of language models: models of mlx-vlm in the language engine.

Begin with `model.py`.
"""
