"""Speculative decoding: proposers guess the next tokens where that pays, and the model checks several in one step.

A token is accepted where the model would have chosen it by itself: answers do not change, only the number of steps
does. The pass in which the model checks proposals is `Batch.check`. Begin with `verification.py`.

- `verification.py`: when proposals are asked for, and how many for each sequence.
- `clock.py`: how long steps take, whatever else runs on the machine.
- `pace.py`: how many proposals pay, from measured acceptance and step times.
- `proposers.py`: sources of proposals: the text itself, or a smaller model. A new source is one more class.
- `trees.py`: proposals with second choices: how they grow, and when they pay.
- `judging.py`: which tokens the model chooses at the places of proposals.
- `followers.py`: the interface of proposers that draft from the model's hidden states: `heads.py`, and `assistants.py`,
  which has no caches of its own.
"""
