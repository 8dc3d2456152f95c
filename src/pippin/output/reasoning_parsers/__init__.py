"""Formats of reasoning: one file each, with a module-level `FORMAT`, found because it is there."""
