"""Whether a model is served with the quality that its publisher gave it. Begin with `run.py`.

- `folder.py`: a model's folder as its files say it, read once.
- `files.py`, `weights.py`, `tokens.py`, `template.py`, `turns.py`: what can be checked without computing.
- `asking.py`: the model as this server runs it, asked without a socket.
- `numbers.py`, `tools.py`, `questions.py`: what the model computes.
- `reading/`: how it reads an ordinary text, and what would make it read better.
"""
