"""Parses generated text into reasoning, text and tool calls; pure and incremental.

Begin with `answer.py`, then `reader.py`. `tool_parsers/` has the formats of calls, a file for each notation, and
`reasoning_formats.py` those of reasoning; `formats.py` finds both. `notations/` is what several formats share;
`channels.py` and `schemas.py` are their building blocks. `stream.py` has the input text and the output events;
`grammars.py` builds the grammars that enforce a format.
"""
