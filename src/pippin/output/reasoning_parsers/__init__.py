"""Formats of reasoning: one file each, with a module-level `FORMAT`, discovered automatically."""
