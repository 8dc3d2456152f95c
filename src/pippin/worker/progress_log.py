"""Log lines on the progress of running answers."""

import logging

from pippin.engines.base import Engine
from pippin.worker.loop import working_on

log = logging.getLogger(__name__)


class ProgressLog:
    """Logs a line for each request after every `interval` more tokens, counted over all its choices."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._told: dict[str, int] = {}  # intervals already logged, for each running request

    def note(self, engine: Engine) -> None:
        """Check all requests of the engine after a step."""
        running, told = engine.stats().requests, self._told
        self._told = {each.id: each.generated_tokens // self._interval for each in running}
        for each in running:
            if self._told[each.id] > told.get(each.id, 0):
                with working_on(each.id):
                    log.info(
                        "%d tokens are written, %.1f a second.", each.generated_tokens, each.tokens_per_second
                    )
