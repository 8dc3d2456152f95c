"""Settings under the profile of a server that Pippin replaces."""

from pippin.config.options.start import Compat
from pippin.config.settings import GivenFlag


def under(compat: Compat | None, *given: GivenFlag) -> tuple[GivenFlag, ...]:
    """These flags beside `--compat`; without it for None."""
    return given if compat is None else (GivenFlag("--compat", compat), *given)
