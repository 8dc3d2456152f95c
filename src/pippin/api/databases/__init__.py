"""The databases in which an API server keeps things: SQLite for one server, PostgreSQL for several on any machines.

Begin with `database.py`. Tables are defined by the rooms that use them: `storage/`, `batches/` and `access/`.
"""
