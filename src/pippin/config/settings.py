"""The resolved configuration: every option's value, and who set it."""

from typing import Any, Literal

from msgspec import Struct, field

from pippin.config.options.server import ServerOptions
from pippin.config.options.start import Compat
from pippin.core.models import ModelKind

Source = Literal["default", "profile", "file", "environment", "flag", "request"]


class Origin(Struct, frozen=True):
    """Who set a value: `name` is the flag, the variable, the file and key, or the profile."""

    source: Source
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.source


DEFAULT = Origin("default")


class Note(Struct, frozen=True):
    """A log line about something that was given but is not needed here, or means something else."""

    severity: Literal["info", "warning"]
    text: str


class Given(Struct, frozen=True):
    value: Any
    origin: Origin


class GivenModel(Struct, frozen=True, kw_only=True):
    """A model from a YAML file, a flag or a profile. `preload` is None if the file does not set it."""

    path: str
    origin: Origin
    name: str | None = None
    kind: ModelKind | None = None
    preload: bool | None = None
    listed: bool = True
    options: dict[str, Given] = field(default_factory=dict)


class Reading(Struct, frozen=True):
    """The options, models and notes from one source of the configuration."""

    options: dict[str, Given] = field(default_factory=dict)
    models: list[GivenModel] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


class GivenFlag(Struct, frozen=True):
    """A flag from the command line; a positional model has the name `MODEL`."""

    name: str
    text: str | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """`provenance` is keyed by option name, and by `models[0].OPTION` for options of a model's own entry."""

    server: ServerOptions
    compat: Compat | None = None
    provenance: dict[str, Origin] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    flags: tuple[GivenFlag, ...] = ()  # which a reload reads again

    def origin(self, name: str) -> Origin:
        return self.provenance.get(name, DEFAULT)
