"""One model on several ranks: processes that hold a part of it each and compute every step together.

Every rank has an engine of the same kind, which is given the same jobs and takes the same steps. Rank 0 leads: it alone
reads text, draws tokens and knows the time, and tells the others (`messages.py`) what they cannot know by themselves;
all else, from admission to the slots and the prefix cache, follows from that. The arithmetic goes through MLX's own
`mx.distributed`. Begin with `leader.py`.
"""
