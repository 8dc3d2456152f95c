"""Which models are in memory: worker processes, and the pool that keeps them within the machine's limits.

Begin with `pool.py`, then `workers/supervisor.py`. The pool uses workers; no worker knows of the pool.
"""
