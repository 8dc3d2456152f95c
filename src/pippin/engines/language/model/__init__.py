"""The model itself: its weights, adapters and head. Begin with `weights.py`."""
