"""How Pippin uses a Ray cluster: what `pippin join` gives its machines, and who may run code on them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MACHINE: Final = "pippin_machine"
"""The resource of which each machine that has joined by `pippin join` has one."""
TOKEN: Final = "~/.ray/auth_token"
SETTINGS: Final = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""Set unless the operator sets them. Without its token a cluster runs the code of whoever reaches its ports
(https://docs.ray.io/en/latest/ray-security/token-auth.html)."""


def ray_environment() -> dict[str, str]:
    """This process's variables, with those by which Ray asks for the cluster's token."""
    return SETTINGS | os.environ


def set_ray_environment() -> None:
    """As `ray_environment`, for Ray in this process."""
    os.environ.update(ray_environment())


def token_file(environment: Mapping[str, str]) -> Path | None:
    """Where Ray reads the token; None where a variable holds it, or none is asked for."""
    if environment["RAY_AUTH_MODE"] != "token" or environment.get("RAY_AUTH_TOKEN"):
        return None
    return Path(environment.get("RAY_AUTH_TOKEN_PATH") or TOKEN).expanduser()
