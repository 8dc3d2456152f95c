"""Parses generated text into reasoning, text and tool calls; pure and incremental.

Begin with `reader.py`. `tool_parsers/` has one file for each format of calls, and `reasoning_formats.py` the formats of
reasoning; `formats.py` finds both. `notations/` is what several formats share; `channels.py` and `schemas.py` are their
building blocks. `stream.py` has the input text and the output events; `grammars.py` builds the grammars that enforce a
format.
"""
