"""Which models fit this machine: `pippin fit` and `pippin recommend`.

Begin with `fit.py`, which adds up weights and contexts; `recommended.json` is the list that `recommend.py` picks from.
"""
