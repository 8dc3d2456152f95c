"""SpecPrefill: of a long prompt, the model computes only the tokens that a smaller model attends to (arXiv:2502.02789).

Begin with `policy.py`: whose prompts are scored. In `importance.py` the draft model scores a prompt's tokens,
`selection.py` chooses the tokens to compute, and `positions.py` computes them at their positions in the prompt.
"""
