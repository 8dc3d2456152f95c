"""Formats of tool calls: one file each, with a module-level `FORMAT`, discovered automatically."""
