"""The current settings: applies changes, and notifies whoever holds the options."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pippin.config.errors import ConfigError
from pippin.config.options.server import ServerOptions
from pippin.config.reload import Reloaded, adopt, change, reload
from pippin.config.settings import Settings
from pippin.core import logs
from pippin.core.errors import trace_of
from pippin.service.service import Service

log = logging.getLogger(__name__)


class LiveSettings:
    """The current settings. `PATCH /v1/settings` and SIGHUP change them; those that need a restart keep their value."""

    def __init__(self, settings: Settings, service: Service) -> None:
        self.settings = settings
        self._start = settings  # as last read from the sources
        self._service = service
        # Called with the options whenever they have changed.
        self.followers: list[Callable[[ServerOptions], None]] = []
        self._asked = False  # for a reload
        self._reloading: asyncio.Task[None] | None = None

    async def change(self, values: Mapping[str, Any]) -> Reloaded:
        """Change single settings. Raises `ConfigError`, in which case nothing has changed."""
        return await self._take_over(change(self.settings, values))

    async def restore(self) -> Reloaded:
        """Undo what `change` has changed."""
        return await self._take_over(adopt(self.settings, self._start))

    def ask_for_reload(self) -> None:
        """Ask for a reload; returns at once. Reloads run one at a time. If one is asked for during another, the reload
        runs once more, because sources that were already read may have changed since."""
        self._asked = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_as_asked(), name="reload")

    async def _reload_as_asked(self) -> None:
        while self._asked:
            self._asked = False
            try:
                await self.reload()
            except Exception as error:  # nobody awaits the task
                log.error("The settings could not be read again.\n%s", trace_of(error))

    async def reload(self) -> None:
        """Read every source again, and log the outcome."""
        try:
            reloaded = await self._take_over(reload(self.settings), files=True)
        except ConfigError as error:
            log.error("The settings stay as they were: %s", error)
            return
        self._start = self.settings
        for note in reloaded.notes:
            log.log(logging.WARNING if note.severity == "warning" else logging.INFO, "%s", note.text)
        log.info("Settings were read again; changed: %s.", ", ".join(reloaded.changed) or "nothing")
        if reloaded.needs_restart:
            log.warning("A restart is needed to change %s.", ", ".join(reloaded.needs_restart))

    async def _take_over(self, reloaded: Reloaded, *, files: bool = False) -> Reloaded:
        """`files`: files that the settings name, such as the key file, may have changed too."""
        self.settings = reloaded.settings
        if reloaded.changed or files:
            options = self.settings.server
            logs.set_level(options.log_level)
            await self._service.adopt(options)
            for adopt in self.followers:
                adopt(options)
        return reloaded
