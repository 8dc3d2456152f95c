"""Several tokens in one step: `proposers.py` guesses what comes next, `verification.py` asks for it where `pace.py`
says that it pays.

What is accepted is what the model would have chosen by itself: answers do not change, only the number of steps does.
The pass in which the model judges proposals is `Batch.check`. A new source of proposals is one more class in
`proposers.py`.
"""
