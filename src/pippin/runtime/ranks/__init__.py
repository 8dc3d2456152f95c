"""One model over several processes: a group of ranks, which the pool leases as if it were one worker.

Begin with `group.py`; `places.py` says where the ranks are that the operator names, `cluster.py` where those of a Ray
cluster are, and how many a model needs there.
"""
