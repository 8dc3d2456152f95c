"""One model on several ranks: processes that each hold a part of it and compute every step together.

Every rank has an engine of the same kind, gets the same jobs and takes the same steps. Rank 0 leads: only rank 0 reads
text, draws tokens and reads the clock, and it tells the others (`messages.py`) what they cannot derive. Everything
else, from admission to the slots and the prefix cache, follows from that. The arithmetic goes through MLX's own
`mx.distributed`. Begin with `leader.py`.
"""
