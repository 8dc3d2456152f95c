"""The scripted engine: a model whose answers stand in a JSON file, for tests, demonstrations and docs.

It is a real engine to everything around it: it runs in a worker, reads its own raw text through the same output
reader as a language model, and honours limits, stop strings, seeds, logprobs, tools and thinking. `docs/scripted.md`
describes the script; with no script it echoes the last user message. Begin with `engine.py`.
"""

from pippin.engines.scripted.engine import open_engine
from pippin.engines.scripted.preparer import open_preparer

__all__ = ["open_engine", "open_preparer"]
