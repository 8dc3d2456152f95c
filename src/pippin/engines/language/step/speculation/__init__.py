"""Several tokens in one step: proposers guess what comes next, and are asked for it where it pays.

What is accepted is what the model would have chosen by itself: answers do not change, only the number of steps does.
The pass in which the model judges proposals is `Batch.check`. Begin with `verification.py`.

- `verification.py`: when proposals are asked for, and how many of whose.
- `clock.py`: what steps cost, whoever else uses the machine.
- `pace.py`: what pays, by what acceptance and time were measured to be.
- `proposers.py`: the text itself, or a smaller model. A new source of proposals is one more class.
- `trees.py`: proposals with second choices: how they grow, and when they pay.
- `judging.py`: what the model chooses where it was given proposals.
- `followers.py`: what those are told that draft from the states that the model's passes leave: `heads.py`, and
  `assistants.py`, which has no caches of its own.
"""
