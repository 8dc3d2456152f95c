"""Typed access to a GGUF file's metadata, with errors that name the key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from pippin.catalog.gguf.reader import Value
from pippin.core.decoding import convert
from pippin.core.errors import ServerError

COUNT: Any = Annotated[int, Meta(ge=0, lt=2**31)]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Metadata:
    """The metadata of the file called `file`. In keys, `{arch}` stands for the architecture's name."""

    file: str
    values: Mapping[str, Value]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def find_text(self, key: str) -> str | None:
        return self._find(key, str, "a text")

    def text(self, key: str) -> str:
        return self._required(key, self.find_text(key))

    def find_count(self, key: str) -> int | None:
        """An integer from 0 to below 2^31."""
        return self._find(key, COUNT, "a whole number")

    def count(self, key: str) -> int:
        value = self._required(key, self.find_count(key))
        if value == 0:
            raise self.wrong(key, value, "a whole number above 0")
        return value

    def find_real(self, key: str) -> float | None:
        value = self._find(key, float, "a number")
        if value is not None and not math.isfinite(value):
            raise self.wrong(key, value, "a number")
        # The file stores float32: 9.999999747378752e-06 stands for 1e-05.
        return None if value is None else float(f"{value:.7g}")

    def real(self, key: str) -> float:
        return self._required(key, self.find_real(key))

    def find_flag(self, key: str) -> bool | None:
        return self._find(key, bool, "true or false")

    def find_texts(self, key: str) -> list[str] | None:
        return self._find(key, list[str], "a list of texts")

    def texts(self, key: str) -> list[str]:
        return self._required(key, self.find_texts(key))

    def find_reals(self, key: str) -> list[float] | None:
        return self._find(key, list[float], "a list of numbers")

    def wrong(self, key: str, value: Value | None, wanted: str) -> ServerError:
        shown = repr(value) if isinstance(value, (int, float, bool)) else f"{str(value)[:40]!r}"
        problem = f"its metadata key {self._full(key)} should be {wanted} and is {shown}"
        message = f"{self.file} cannot be imported: {problem}."
        return ServerError("invalid_request", message, "path")

    def unsupported(self, what: str) -> ServerError:
        return ServerError("unsupported", f"{self.file} cannot be imported: {what}.", "path")

    def _find(self, key: str, type: type[Found], wanted: str) -> Found | None:
        value = self.values.get(self._full(key))
        try:
            return None if value is None else convert(value, type)
        except msgspec.ValidationError:
            raise self.wrong(key, value, wanted) from None

    def _full(self, key: str) -> str:
        return key.replace("{arch}", str(self.values.get("general.architecture"))[:60])

    def _required(self, key: str, value: Found | None) -> Found:
        if value is None:
            message = f"{self.file} cannot be imported: its metadata lacks the key {self._full(key)}."
            raise ServerError("invalid_request", message, "path")
        return value
