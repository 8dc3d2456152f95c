"""Lines of the log that tell how far running answers are."""

import logging

from pippin.engines.base import Engine
from pippin.worker.loop import working_on

log = logging.getLogger(__name__)


class ProgressLog:
    """Writes a line for each request whenever it has got `interval` more tokens, of all its choices together."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._told: dict[str, int] = {}  # intervals that were told, of each request that runs

    def note(self, engine: Engine) -> None:
        """Look where all requests of the engine stand after a step."""
        running, told = engine.stats().requests, self._told
        self._told = {each.id: each.generated_tokens // self._interval for each in running}
        for each in running:
            if self._told[each.id] > told.get(each.id, 0):
                with working_on(each.id):
                    log.info(
                        "%d tokens are written, %.1f a second.", each.generated_tokens, each.tokens_per_second
                    )
