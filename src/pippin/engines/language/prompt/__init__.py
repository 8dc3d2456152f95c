"""From a request to a job, with all that depends on tokenizer and template. Begin with `preparer.py`.

- `preparer.py`: the preparer of language models, which makes a job of a request.
- `rendering.py`: the prompt of a request, rendered by the chat template and tokenized.
- `messages.py`: a conversation in the form that the model's chat template takes.
- `fitting.py`: fits a conversation into the context window.
- `infill.py`: prompts for the text between a prefix and a suffix.
- `reasoning.py`: how reasoning begins and ends in one request.
- `limits.py`: the bounds of a request's numbers for this model.
"""
