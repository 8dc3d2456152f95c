"""Formats of tool calls: a file for each notation, whose module-level `FORMATS` are discovered automatically."""
