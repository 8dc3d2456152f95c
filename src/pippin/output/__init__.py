"""Parses generated text into reasoning, text and tool calls; pure and incremental.

Begin with `reader.py`. `tool_parsers/` has the notations of calls, a file for each; the formats that use them are rows
of `tool_formats.json`, those of reasoning of `reasoning_formats.json`; `formats.py` finds both. `notations/` is what
several notations share; `channels.py` and `schemas.py` are their building blocks. `stream.py` has the input text and
the output events; `grammars.py` builds the grammars that enforce a format.
"""
