"""The examples of each replaced server's document, typed as there, against a server started as there.

Begin with `examples.py`: tiny random models lie in a Hugging Face cache of the tests' own, under the names that the
examples have, and only the port of an example is another. Examples with pictures, speech and images are not here yet:
those kinds are shown by the tests of their rooms.
"""
