"""The endpoints of all kinds of model but language: the counterpart of dialects, a module for each kind.

A module has the bodies and replies, `routes(api)`, and the contracts of its paths in `CONTRACTS`, from which
`docs/api.md` is generated. Begin with `embeddings.py`.
"""
