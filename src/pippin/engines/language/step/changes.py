"""Options that change while the model runs."""

from typing import Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError

CHANGEABLE = {"memory_bytes", "target_gap_ms", "queue_timeout", "queue_size", "stream_interval"}


def changed(options: ModelOptions, changes: dict[str, Any]) -> ModelOptions:
    """The options with these changes. Raises `ServerError` for an option that cannot change, or a value it cannot
    have."""
    fixed = sorted(set(changes) - CHANGEABLE)
    if fixed:
        raise ServerError(
            "unsupported",
            f"{', '.join(fixed)} cannot change while the model runs (these can: {', '.join(sorted(CHANGEABLE))}): "
            "unload the model and load it with the new value.",
        )
    try:
        return convert({**msgspec.to_builtins(options), **changes}, ModelOptions)
    except msgspec.ValidationError as error:
        raise ServerError(
            "invalid_request", f"An option has a value that it cannot have: {error}."
        ) from error
