"""One model served in several places: which replica answers a request, and what happens when a replica is lost.

Begin with `processes.py`, which manages replicas on this machine and in a cluster; `routing.py` chooses among them.
"""
