"""Bodies and replies of the kinds of model other than language: what dialects are to generations, with no HTTP in it.

One module for each kind; a larger one splits its replies off. Each names the contracts of its addresses in `CONTRACTS`,
from which `docs/api.md` is written. Begin with `embeddings.py`.
"""
