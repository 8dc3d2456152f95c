"""Turns a request into a job, with the tokenizer and the chat template. Begin with `preparer.py`.

- `preparer.py`: the preparer of language models, which makes a job from a request, checks the request's numbers and
  plans its reasoning.
- `rendering.py`: the prompt of a request, rendered by the chat template, tokenized, and fitted into the context window.
- `messages.py`: a conversation in the form that the model's chat template takes.
- `forms.py`: the form of a conversation of which the template leaves nothing out, and the proof that nothing is lost.
- `infill.py`: prompts for the text between a prefix and a suffix.
"""
