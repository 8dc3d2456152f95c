"""Pictures, video and audio in the prompts of language models: models of mlx-vlm in the language engine.

Begin with `media.py`. A medium goes through these files in this order:

- `checkpoint.py`: which model folders mlx-vlm runs, and loading their model (`processors.py`: their processor).
- `processing.py`: the model's processor turns a medium into arrays and placeholder text (`video.py` decodes frames,
  `tiles.py` cuts the pictures of Llama 4).
- `media.py`: the media of a prompt: where messages name them to a chat template, the text that replaces their
  placeholders, and which tokens their features replace.
- `encoder.py`: computes features of media once, keeps them, and merges them into chunks of the prompt.
- `model.py`: mlx-vlm's model as the engine calls it.
- `trial.py`: when a model is loaded, compares its logits after media with mlx-vlm's own.
"""
