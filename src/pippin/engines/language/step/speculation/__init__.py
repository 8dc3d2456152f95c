"""Speculative decoding: proposers guess the next tokens where that pays, and the model checks several in one step.

A token is accepted where the model would have chosen it by itself: answers do not change, only the number of steps
does. What a grammar forces is no guess: it is taken without a draw. The pass in which the model checks proposals is
`Batch.check`. Begin with `verification.py`.

- `verification.py`: when proposals are asked for, and how many for each sequence.
- `pace.py`: how many proposals pay, from measured acceptance and step times.
- `proposers.py`: the interface of sources of proposals, and the lookups in texts. A new source is one more class.
- `draft_model.py`: proposals of a smaller model.
- `heads.py` and `assistants.py`, which has no caches of its own: proposals from the model's hidden states.
- `drafter_slots.py`: the caches of `draft_model.py` and `heads.py`, with a slot for each sequence.
"""
