"""Chat templates: Jinja from a model's folder, bounded in what it may cost. Begin with `template.py`."""
