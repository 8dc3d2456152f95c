"""The databases in which an API server keeps things: SQLite for one server, PostgreSQL for several on any machines.

Begin with `database.py`. What is kept, and in which tables, is said where it is kept: in `storage/`, `batches/`, and
`access/`.
"""
