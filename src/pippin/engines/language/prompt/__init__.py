"""From a request to a job: template, tokens, limits. Begin with `preparer.py`."""
