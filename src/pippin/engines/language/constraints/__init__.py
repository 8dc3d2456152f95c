"""Structured output: grammars, and the masks of tokens that they allow next. Begin with `grammar.py`.

- `grammar.py`: compiles output formats and tool calls by llguidance, and follows one sequence through its grammar.
- `schema.py`: finds the part of a JSON schema that can't be compiled, for the message of a refusal.
- `tokens.py`: the vocabulary as llguidance reads it.
"""
