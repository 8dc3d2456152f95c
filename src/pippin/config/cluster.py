"""How Pippin uses a Ray cluster: the resource that `pippin join` gives a machine, and who may run code there."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

MACHINE: Final = "pippin_machine"
"""The Ray resource that marks machines which joined with `pippin join`; each has one unit."""
KEPT: Final = 2 << 30  # bytes of a machine that are left to its other programs
OBJECTS: Final = 128 << 20
"""Bytes of Ray's object store, which workers do not use: their frames bypass it."""
TOKEN: Final = "~/.ray/auth_token"
SETTINGS: Final = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""Applied unless the operator sets them. Without a token, a cluster runs the code of anyone who reaches its ports
(https://docs.ray.io/en/latest/ray-security/token-auth.html)."""


def memory_here() -> int:
    """Bytes that workers may take on this machine, unless the operator says how many."""
    return max(int(psutil.virtual_memory().total) - KEPT, 1)


def ray_environment() -> dict[str, str]:
    """This process's environment, plus the variables that make Ray require the cluster's token."""
    return SETTINGS | os.environ


def set_ray_environment() -> None:
    """Apply `ray_environment` to this process."""
    os.environ.update(ray_environment())


def token_file(environment: Mapping[str, str]) -> Path | None:
    """The file from which Ray reads the token; None if a variable holds it, or none is required."""
    if environment["RAY_AUTH_MODE"] != "token" or environment.get("RAY_AUTH_TOKEN"):
        return None
    return Path(environment.get("RAY_AUTH_TOKEN_PATH") or TOKEN).expanduser()
