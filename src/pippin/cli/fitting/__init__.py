"""Which models fit this machine: `pippin fit` and `pippin recommend`.

Begin with `fit.py`, which adds up weights and contexts. `source.py` reads the facts about a model on this machine or on
the hub, without its weights; `recommended.json` is the list that `recommend.py` picks from.
"""
