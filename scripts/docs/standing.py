"""Reads `migrating/`: where the promises of each replaced server stand, a file for a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pippin.config.options.start import Compat

FILES: Final = Path(__file__).with_name("migrating")


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server's documents and newest code promise, by its state here, each with a note.

    All that they promise and that is in no row works as there.
    """

    profile: tuple[str, ...] = ()  # sentences about its `--compat`
    differs: Mapping[str, str] = {}  # another here on purpose
    missing: Mapping[str, str] = {}
    partly: Mapping[str, str] = {}
    works: Mapping[str, str] = {}  # was once missing; the note may be empty
    commands: Mapping[str, str] = {}  # other commands, and what does their work

    @property
    def promises(self) -> Mapping[str, str]:
        return {**self.differs, **self.missing, **self.partly, **self.works}


def standing(server: Compat) -> Standing:
    return msgspec.yaml.decode((FILES / f"{server}.yaml").read_bytes(), type=Standing)
