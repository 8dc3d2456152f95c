"""The models: one module or package for each kind, found by the kind's name. Begin with `base.py`."""
