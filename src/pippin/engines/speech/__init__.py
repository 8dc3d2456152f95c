"""The engine of speech models: text to encoded audio, by the models of mlx-audio.

Begin with `speaking.py`, which loads a model, checks a request and runs it. `keywords.py` tells which fields a model
uses.
"""

from pippin.engines.speech.speaking import open_engine, open_preparer

__all__ = ("open_engine", "open_preparer")
