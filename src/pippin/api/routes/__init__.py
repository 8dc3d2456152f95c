"""The endpoints other than generation: each module has a function `routes(api)` and is discovered automatically.

Begin with `models.py`.
"""
