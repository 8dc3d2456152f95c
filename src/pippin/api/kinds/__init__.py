"""Bodies and replies of all kinds of model but language: the counterpart of dialects, also without HTTP.

There is one module for each kind. Each lists the contracts of its paths in
`CONTRACTS`, from which `docs/api.md` is generated. Begin with `embeddings.py`.
"""
