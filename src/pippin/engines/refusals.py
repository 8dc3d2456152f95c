"""Errors for fields, for requests that a library refuses, and for packages that it needs and does not require."""

import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ErrorKind, ServerError

logger = logging.getLogger(__name__)

LONGEST: Final = 400
"""The most letters of a library's error that a client is told."""


def refused(param: str, what: str, kind: ErrorKind = "invalid_request") -> ServerError:
    """The refusal of a field, by a sentence that begins with its name."""
    return ServerError(kind, f"'{param}' {what}", param)


def unusable(option: str, why: str) -> ServerError:
    """The refusal of an option that cannot be used, for a reason that goes on from there."""
    return ServerError("load_failed", f"{option} cannot be used {why}. Start without it.", option)


def refuse_set(options: ModelOptions, names: Iterable[str], why: str) -> None:
    """Raises `ServerError("load_failed")` for the first of these options that has another value than its default."""
    usual = ModelOptions()
    for name in names:
        if getattr(options, name) != getattr(usual, name):
            raise unusable(name, why)


UNFETCHED: Final = (
    "This model's library gave up, as spaCy does where it can't fetch its English model: "
    "`python -m spacy download en_core_web_sm` does that; the log says more."
)
"""The message when a library tries to end the process, as Kokoro's English front end in mlx-audio does."""


@contextmanager
def library_refusals(param: str) -> Iterator[None]:
    """Turn a library's refusal of a request into a client error that names `param`.

    Raises `ServerError`. An error about arguments that a library can't use is no failure of the server. MLX's errors
    about array shapes, which begin with a bracket, are failures and pass through.
    """
    try:
        yield
    except ImportError as error:
        raise missing_package(error) from error
    except SystemExit as error:
        logger.warning("a model's library tried to end the process", exc_info=True)
        raise ServerError("load_failed", UNFETCHED) from error
    except (ValueError, AssertionError, KeyError, NotImplementedError) as error:
        if str(error).startswith("["):
            raise
        logger.warning("A model refused a request: %s in %s.", type(error).__name__, _place_of(error))
        logger.debug("A model refused a request.", exc_info=True)
        words = str(error).strip() or type(error).__name__
        words = f"it does not know {words}" if isinstance(error, KeyError) else words
        message = f"The model refuses this request: {words[:LONGEST].rstrip('.')}."
        raise ServerError("invalid_request", message, param) from error


def _place_of(error: Exception) -> str:
    """The line that raised an error. Its message may quote the client's input, which does not belong in the log."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"


PHONEMES: Final = ("misaki", "phonemizer", "espeakng_loader", "num2words", "spacy")
"""Packages that turn text into phonemes, of the extra `kokoro`."""


def missing_package(error: ImportError) -> ServerError:
    """The refusal of a model that needs a package which mlx-audio does not require.

    mlx-audio raises its own errors, without a name, from the errors that name the package.
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
    way = install_command("kokoro") if package in PHONEMES else f"pip install {package}"
    message = f"This model needs the Python package {package!r}, which is not installed: {way}"
    return ServerError("load_failed", message)
