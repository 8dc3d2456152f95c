"""OpenAI's Completions: raw prompts, several in one body, and the legacy form of log probabilities.

Begin with `dialect.py`: the body and the requests made from it. `encode.py` encodes answers.
"""
