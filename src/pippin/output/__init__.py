"""Reads generated text as reasoning, text and tool calls; pure and incremental.

Begin with `reader.py`. `tool_parsers/` and `reasoning_parsers/` have one file for each format, found by `formats.py`;
`notations/` what formats write alike, `channels.py` and `schemas.py` what those are made of; `stream.py` the text that
comes in and the events that go out; `grammars.py` what is made of a format to enforce it.
"""
