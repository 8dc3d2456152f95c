"""The caches of all sequences of a model: which memory they lie in, and what a model sees of them in a batch.

Told lengths and given handles, never sequences. Begin with `groups.py`, which is what a step talks to. `slots.py`:
requests, handles and the table of lengths. `slot_group.py`, `solo_group.py`: sequences that share arrays, or have
each its own. `layout.py`: the kinds of cache that a model has. `kinds/`: one file for each kind. `probe.py`: how a
model's sequences can run together, found by trying. `capacity.py`: how much memory a slot is given.
"""
