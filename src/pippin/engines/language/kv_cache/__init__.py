"""Where keys, values and state lie: slots of batched caches, one class for each kind. Begin with `kinds.py`."""
