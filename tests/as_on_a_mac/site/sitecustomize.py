"""In a test server as on a Mac, and its workers: Pippin's modules find a Mac, whose facts and GPU they are told.

MLX must not be imported before the worker has chosen its BLAS, so that waits until the facts are asked for.
"""

import os
from typing import Any

from tests.as_on_a_mac.site import darwin


def told() -> Any:
    from tests.as_on_a_mac.mac import chosen_mac
    from tests.as_on_a_mac.process import take

    mac = chosen_mac()
    assert mac is not None
    take(mac)
    return mac.facts


if darwin.CHOSEN in os.environ:
    darwin.begin({"pippin.engines.device": {"find_facts": told}})
