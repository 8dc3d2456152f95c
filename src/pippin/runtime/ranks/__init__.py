"""One model over several processes: a group of ranks, which the pool leases as one worker.

Begin with `group.py`; `places.py` locates the ranks that the operator named, and those in a Ray cluster.
"""
