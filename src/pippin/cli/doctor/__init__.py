"""What `pippin doctor` finds. Begin with `checks.py`; `security.py` is asked for by a flag of its own.

`findings.py` says what single facts of a machine mean.
"""
