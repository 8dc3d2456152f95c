"""Whose log lines are written: our own at the level that was asked for, those of libraries as warnings at most.

Libraries log the addresses that they call, which may hold secrets, and what clients sent.
"""

import logging
from typing import Final

OURS: Final = "pippin"


def set_level(level: str) -> None:
    """`level` is one of logging's, in any case: that of our own loggers."""
    logging.getLogger(OURS).setLevel(level.upper())
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger(OURS).level))
