"""Which modules of the libraries have mends."""

from pathlib import Path

from pippin.engines.language import upstream


def files(library: str) -> list[str]:
    """The names of the architectures or families of a library that have mends."""
    folder = Path(upstream.__file__).parent / library
    return sorted(path.stem for path in folder.glob("[!_]*.py"))
