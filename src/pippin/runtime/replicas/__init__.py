"""One model served in several places: which replica answers a request, and what happens when a replica is lost.

Begin with `group.py`; `processes.py` manages replicas on this machine and in a cluster.
"""
