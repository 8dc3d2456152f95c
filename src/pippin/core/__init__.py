"""The words that cross Pippin's doors: frozen structs, no I/O, nothing imported but msgspec.

Begin with `requests.py` and `events.py`.
"""
