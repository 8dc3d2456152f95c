"""Settings under the profile of a server that Pippin replaces."""

from pippin.config.options.start import Compat
from pippin.config.settings import GivenFlag, Sources


def under(compat: Compat | None, *given: GivenFlag) -> Sources:
    """These flags beside `--compat`; without it for None."""
    return Sources(flags=given if compat is None else (GivenFlag("--compat", compat), *given))
