"""The checks of `pippin doctor`. Begin with `checks.py`; `security.py` runs if its flag is given.

`findings.py` interprets single facts about a machine.
"""
