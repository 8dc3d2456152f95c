"""The APIs that Pippin speaks: how each decodes bodies and encodes answers, without HTTP. Begin with `base.py`."""
