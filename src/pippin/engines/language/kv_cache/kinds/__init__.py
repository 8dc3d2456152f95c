"""The kinds of cache that Pippin batches, one file each. Begin with `base.py`.

The name `KIND` in a file is the class by which the layers of a model find it.
"""
