"""One model served in several places: which of them answers a request, and what follows when that one is lost.

Begin with `routing.py`, then `group.py`; `processes.py` are replicas on this machine. `runtime/peers` routes to other
servers by the same means.
"""
