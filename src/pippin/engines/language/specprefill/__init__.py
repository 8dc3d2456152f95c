"""SpecPrefill: of a long prompt, the model computes only the tokens that a smaller model attends to (arXiv:2502.02789).

Begin with `policy.py`: whose prompts are scored. `importance.py` has the draft model score a prompt's tokens,
`selection.py` chooses which of them are computed, and `positions.py` computes these where they stand in the prompt.
"""
