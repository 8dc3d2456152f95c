"""The endpoints that ask no model, or come with a dialect: each module has a function `routes(api)` and is discovered
automatically. Begin with `models.py`.
"""
