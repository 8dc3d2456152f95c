"""The examples of each replaced server's documents, in their order, typed as there, against a server started as there.

Begin with `examples.py`, which starts servers and types examples. `tiny_cache.py` puts tiny random models into a
cache of the tests' own, under the names that the examples have. A test is named by the heading that its example stands
under. Other than in the document are the port, and hosts and folders that are not here.
"""
