"""The verbs, listed in `main.VERBS`: a module for each, or for several that are about the same.

Modules are independent of each other. Begin with `models.py`.
"""
