"""What is remembered of computed prompts, in memory and on disk. Begin with `cache.py`."""
