"""Text to tokens and back: the model's tokenizer, its special tokens and its chat templates, and the shields that keep
clients' text apart from them. Begin with `tokenizer.py`.
"""
