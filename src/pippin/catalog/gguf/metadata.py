"""Typed access to a GGUF file's metadata, with errors that name the key."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pippin.catalog.gguf.reader import Value
from pippin.core.errors import ServerError

LARGEST: Final = 2**31
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
        value = self._find(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return value

    def text(self, key: str) -> str:
        return self._required(key, self.find_text(key))

    def find_count(self, key: str) -> int | None:
        """An integer from 0 to below 2^31."""
        value = self._find(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
            raise self.wrong(key, value, "a whole number")
        return value

    def count(self, key: str) -> int:
        value = self._required(key, self.find_count(key))
        if value == 0:
            raise self.wrong(key, value, "a whole number above 0")
        return value

    def find_real(self, key: str) -> float | None:
        value = self._find(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.wrong(key, value, "a number")
        # The file stores float32: 9.999999747378752e-06 stands for 1e-05.
        return float(f"{value:.7g}")

    def real(self, key: str) -> float:
        return self._required(key, self.find_real(key))

    def find_flag(self, key: str) -> bool | None:
        value = self._find(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def find_texts(self, key: str) -> list[str] | None:
        value = self._find(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(key, value, "a list of texts")
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) != len(value):
            raise self.wrong(key, value, "a list of texts")
        return texts

    def texts(self, key: str) -> list[str]:
        return self._required(key, self.find_texts(key))

    def find_reals(self, key: str) -> list[float] | None:
        value = self._find(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(key, value, "a list of numbers")
        numbers = [float(item) for item in value if isinstance(item, (int, float))]
        if len(numbers) != len(value):
            raise self.wrong(key, value, "a list of numbers")
        return numbers

    def wrong(self, key: str, value: Value, wanted: str) -> ServerError:
        shown = repr(value) if isinstance(value, (int, float, bool)) else f"{str(value)[:40]!r}"
        problem = f"its metadata key {self._full(key)} should be {wanted} and is {shown}"
        message = f"{self.file} cannot be imported: {problem}."
        return ServerError("invalid_request", message, "path")

    def unsupported(self, what: str) -> ServerError:
        return ServerError("unsupported", f"{self.file} cannot be imported: {what}.", "path")

    def _find(self, key: str) -> Value | None:
        return self.values.get(self._full(key))

    def _full(self, key: str) -> str:
        return key.replace("{arch}", str(self.values.get("general.architecture"))[:60])

    def _required(self, key: str, value: Found | None) -> Found:
        if value is None:
            message = f"{self.file} cannot be imported: its metadata lacks the key {self._full(key)}."
            raise ServerError("invalid_request", message, "path")
        return value
