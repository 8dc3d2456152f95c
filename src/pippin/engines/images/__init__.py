"""The engine of image models, which paints with mlx-vlm's pipelines. Begin with `painting.py`."""

from pippin.engines.images.painting import open_engine, open_preparer

__all__ = ("open_engine", "open_preparer")
