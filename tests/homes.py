"""The homes of servers that tests start: empty, but for what libraries say of models."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHARED: Final = "KEPT_FOR_TESTS"
"""The variable with the folder in which all servers of a run keep what libraries say of models. With one of its own,
each would import transformers, try its model's batches, and compute for seconds what the one before had found."""


def share_kept(variables: Mapping[str, str]) -> None:
    """Let a server with these variables, `HOME` among them, find in its home what servers before it have kept."""
    shared = os.environ.get(SHARED)
    if shared is None:  # not in a run of tests
        return
    home = Path(variables.get("PIPPIN_HOME") or Path(variables["HOME"], ".cache", "pippin"))
    home.mkdir(parents=True, exist_ok=True)
    Path(shared).mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # a second server in this home
        (home / "kept").symlink_to(shared, target_is_directory=True)
