"""The kinds of cache that Pippin batches: one file each, with its class under the name `KIND`. Begin with `base.py`."""
