"""The KV caches of computed prompts, kept in memory and on disk for later requests. Begin with `cache.py`."""
