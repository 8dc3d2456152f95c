"""Which models fit this machine: `pippin fit`, `recommend` and `search`.

Begin with `fit.py`, which adds up weights and contexts. `source.py` reads what is known of a model that is here or on
the hub, without its weights; `recommended.json` is the list that `recommend.py` picks from.
"""
