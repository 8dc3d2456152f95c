from tests.engines.conftest import tiny_models

__all__ = ["tiny_models"]
