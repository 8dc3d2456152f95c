"""Who is in memory: worker processes, and the pool that keeps them within the machine's means.

Begin with `pool/pool.py`, then `workers/supervisor.py`. The pool uses workers, and no worker knows of the pool.
"""
