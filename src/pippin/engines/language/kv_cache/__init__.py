"""The caches of all sequences of a model: which memory they lie in, and what a model sees of them in a batch.

Told lengths and given handles, never sequences. Begin with `groups.py`, which is what a step talks to.

- `groups.py`: sequences that go through the model together, each in its slot of arrays that all share.
- `pieces.py`: where a step's attention is cut, if a device would read padding else.
- `solo_group.py`: sequences that each have arrays of their own, where a model cannot run them together.
- `layout.py`: the kinds of cache that a model has; `kinds/` has one file for each kind, and in `kinds/base.py` what all
  of them build on: the table of slots, and how much capacity a slot is given.
- `probe.py`: how a model's sequences can run together, found by trying.
"""
