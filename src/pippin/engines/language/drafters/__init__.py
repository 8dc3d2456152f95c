"""Modules that draft a model's next tokens from its own hidden states. Most wrap a module of mlx-vlm.

Begin with `heads.py`.

- `heads.py`: EAGLE-3 and multi-token prediction: a decoder layer that drafts one token after the other.
- `layers.py`: multi-token prediction by a layer behind the model's last one, of the model's own class.
- `blocks.py`: DFlash, which drafts a whole block in one pass.
- `assistants.py`: Gemma 4's assistants, which attend to the model's own keys and values.
- `loading.py`: which kind of drafter a folder holds, its weights, and whether it was made for the model.

How sequences are followed and their drafts judged is `step/speculation/`.
"""
