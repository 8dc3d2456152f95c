"""What is said where a model needs a Python package that its library does not require."""

from typing import Final

from pippin.core.errors import ServerError

PHONEMES: Final = ("misaki", "phonemizer", "espeakng_loader", "num2words", "spacy")
"""Packages that turn text into phonemes, of the extra `kokoro`."""


def missing_package(error: ImportError) -> ServerError:
    """The refusal of a model that needs a package which mlx-audio does not require.

    mlx-audio raises errors of its own, without a name, from those that name the package.
    """
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 10:
        causes.append(cause)
    names = [each.name for each in causes if isinstance(each, ImportError) and each.name]
    if not names:
        return ServerError(
            "load_failed", f"This model needs a Python package that is not installed: {error}."
        )
    package = names[-1].partition(".")[0]
    way = 'pip install "pippin[kokoro]"' if package in PHONEMES else f"pip install {package}"
    message = f"This model needs the Python package {package!r}, which is not installed: {way}."
    return ServerError("load_failed", message)
