"""What several dialects read or draw alike. Begin with `fields.py`."""
