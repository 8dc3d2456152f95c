"""Reads a GGUF file's header and locates its tensors, trusting nothing in the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). Every count, length
and offset is checked against the file's size before anything is allocated for it. The codes of value and tensor types
and the block sizes come from the `gguf` library; its own reader believes what a file claims (docs/architecture.md,
"Libraries that were tried").
"""

import math
import mmap
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, cast

import msgspec
import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFValueType
from gguf import GGMLQuantizationType as TensorType
from msgspec import Meta, Struct
from numpy.typing import NDArray

from pippin.core.decoding import convert
from pippin.core.errors import ServerError

Scalar = str | int | float | bool
Value = Scalar | Sequence[Scalar]

MOST_KEYS: Final = 65_536
MOST_TENSORS: Final = 65_536
MOST_ELEMENTS: Final = 4_194_304  # per metadata array; the largest vocabularies have a sixteenth of it
LONGEST_STRING: Final = 8 * 1024 * 1024
LONGEST_NAME: Final = 256
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
NUMBERS: Final = {
    GGUFValueType[name]: letter
    for name, letter in zip(
        "UINT8 INT8 UINT16 INT16 UINT32 INT32 FLOAT32 UINT64 INT64 FLOAT64".split(), "BbHhIifQqd", strict=True
    )
}
"""`struct` format of each number type."""
LEAST_BYTES: Final = {GGUFValueType.BOOL: 1, GGUFValueType.STRING: 8} | {
    kind: struct.calcsize(f"<{letter}") for kind, letter in NUMBERS.items()
}
TYPES: Final = """
F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL
IQ4_XS TQ1_0 TQ2_0 MXFP4
"""
TENSOR_TYPES: Final = frozenset(TensorType[name] for name in TYPES.split())
"""The tensor types that can be imported."""


class Tensor(Struct, frozen=True):
    """The location of a tensor. `shape` is in row-major order (GGUF itself stores it reversed)."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int  # bytes from the beginning of the file
    size: int  # bytes


class GgufFile:
    """An open GGUF file: its metadata, its tensors by name, and their bytes, mapped on demand.

    Raises `ServerError` for any fault in the file. Close it, or use it in a `with`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 24:
                    raise malformed(path, "it is too short to be a GGUF file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ServerError(
                "invalid_request", f"Cannot read {path.name}: {error.strerror}.", "path"
            ) from error
        try:
            header = _Header(path, self._map, size)
            self.metadata, self.tensors = header.read()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def read(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The tensor's bytes, copied out of the file, with one row of the array per row of the tensor."""
        raw = np.frombuffer(self._map[tensor.start : tensor.start + tensor.size], dtype=np.uint8)
        rows = math.prod(tensor.shape[:-1])
        return raw.reshape(rows, tensor.size // rows)


def malformed(path: Path, reason: str) -> ServerError:
    return ServerError(
        "invalid_request", f"{path.name} cannot be imported: {reason}. Fetch the file again.", "path"
    )


class _Header:
    """A cursor over the header that checks each value before it moves on."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 0

    def read(self) -> tuple[dict[str, Value], dict[str, Tensor]]:
        if self._data[:4] != b"GGUF":
            raise self._malformed("it does not begin with the GGUF magic")
        self._at = 4
        version = self._integer("I")
        if version not in (2, 3):
            reason = (
                f"it is of GGUF version {version}; versions 2 and 3 of little-endian files are understood"
            )
            raise self._malformed(reason)
        tensor_count = self._count(MOST_TENSORS, 24, "tensors")
        key_count = self._count(MOST_KEYS, 13, "metadata keys")
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self._string(LONGEST_NAME, "a metadata key")
            if key in metadata:
                raise self._malformed(f"the metadata key {key!r} stands in it twice")
            metadata[key] = self._value(key)
        described = [self._describe() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= 65_536 or alignment & (alignment - 1):
            raise self._malformed(f"its alignment is {alignment!r}")
        return metadata, self._place(described, alignment)

    def _malformed(self, reason: str) -> ServerError:
        return malformed(self._path, reason)

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > self._size:
            raise self._malformed("it ends in the middle of its header (an incomplete download?)")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _integer(self, code: Literal["I", "Q"]) -> int:
        return int(self._numbers(code, 1)[0])

    def _numbers(self, letter: str, count: int) -> tuple[int | float, ...]:
        form = f"<{count}{letter}"
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _count(self, most: int, least_bytes: int, what: str) -> int:
        count = self._integer("Q")
        if count > most or count * least_bytes > self._size - self._at:
            raise self._malformed(f"it claims to hold {count} {what}, which cannot be true")
        return count

    def _string(self, longest: int, what: str) -> str:
        length = self._integer("Q")
        if length > longest:
            raise self._malformed(f"{what} is {length} bytes long; at most {longest} are accepted")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._malformed(f"{what} is not UTF-8") from None

    def _value(self, key: str) -> Value:
        code = self._integer("I")
        if code != GGUFValueType.ARRAY:
            return self._scalar(code, key)
        code = self._integer("I")
        least_bytes = LEAST_BYTES.get(code)
        if least_bytes is None:
            raise self._malformed(f"{key!r} is an array of the unknown type {code}")
        count = self._count(MOST_ELEMENTS, least_bytes, f"values of {key!r}")
        if code in NUMBERS:
            return self._numbers(NUMBERS[code], count)
        return [self._scalar(code, key) for _ in range(count)]

    def _scalar(self, code: int, key: str) -> Scalar:
        if code == GGUFValueType.STRING:
            return self._string(LONGEST_STRING, f"the value of {key!r}")
        if code == GGUFValueType.BOOL:
            return self._take(1) != b"\0"
        if code not in NUMBERS:
            raise self._malformed(f"{key!r} has the unknown type {code}")
        return self._numbers(NUMBERS[code], 1)[0]

    def _describe(self) -> Tensor:
        """A tensor, whose `start` counts from the first one."""
        name = self._string(LONGEST_NAME, "a tensor's name")
        if NAME.fullmatch(name) is None:
            raise self._malformed(f"the tensor name {name!r} holds characters that no tensor name has")
        dimensions = self._integer("I")
        if not 1 <= dimensions <= 4:
            raise self._malformed(f"the tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed([self._integer("Q") for _ in range(dimensions)]))
        code = self._integer("I")
        offset = self._integer("Q")
        if code not in TENSOR_TYPES:
            raise ServerError(
                "unsupported",
                f"{self._path.name} cannot be imported: the tensor {name} has the type number {code}, which is "
                "not read here. Take a file of another type, such as Q8_0, Q4_K_M or F16.",
                "path",
            )
        tensor_type = TensorType(code)
        # Python integers do not overflow; sizes beyond the file are refused in `_place`.
        block, block_bytes = GGML_QUANT_SIZES[tensor_type]
        if min(shape) < 1 or shape[-1] % block:
            raise self._malformed(
                f"the tensor {name} of type {tensor_type.name} has the impossible shape {list(shape)}"
            )
        return Tensor(name, shape, tensor_type, offset, math.prod(shape) // block * block_bytes)

    def _place(self, described: list[Tensor], alignment: int) -> dict[str, Tensor]:
        begin = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for tensor in described:
            name, start = tensor.name, tensor.start
            if name in tensors:
                raise self._malformed(f"the tensor {name} stands in it twice")
            if start % alignment:
                raise self._malformed(
                    f"the tensor {name} begins at {start}, against the alignment of {alignment}"
                )
            if begin + start + tensor.size > self._size:
                raise self._malformed(f"it ends before the tensor {name} does (an incomplete download?)")
            tensors[name] = msgspec.structs.replace(tensor, start=begin + start)
        end = 0
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
            if tensor.start < end:
                raise self._malformed(f"the tensor {tensor.name} overlaps another one")
            end = tensor.start + tensor.size
        return tensors


COUNT: Any = Annotated[int, Meta(ge=0, lt=2**31)]
"""An integer from 0 to below 2^31."""
WANTED: Final[dict[Any, str]] = {
    COUNT: "a whole number",
    bool: "true or false",
    float: "a number",
    str: "a text",
    list[float]: "a list of numbers",
    list[str]: "a list of texts",
}
Found = TypeVar("Found")


class Metadata(Struct, frozen=True):
    """The metadata of the file called `file`. In keys, `{arch}` stands for the architecture's name."""

    file: str
    values: Mapping[str, Value]

    @property
    def architecture(self) -> str:
        return self.get("general.architecture", str)

    def find(self, key: str, type: type[Found]) -> Found | None:
        """The value of a key, of one of the types in `WANTED`; None where the file lacks it."""
        value: Any = self.values.get(self._full(key))
        try:
            found: Any = None if value is None else convert(value, type)
        except msgspec.ValidationError:
            raise self.wrong(key, value, WANTED[type]) from None
        if isinstance(found, float):
            if not math.isfinite(found):
                raise self.wrong(key, value, WANTED[type])
            # The file stores float32: 9.999999747378752e-06 stands for 1e-05.
            found = float(f"{found:.7g}")
        return cast(Found | None, found)

    def get(self, key: str, type: type[Found]) -> Found:
        """The value of a key that the file must have; of counts, one above 0."""
        value = self.find(key, type)
        if value is None:
            message = f"{self.file} cannot be imported: its metadata lacks the key {self._full(key)}."
            raise ServerError("invalid_request", message, "path")
        if type is COUNT and value == 0:
            raise self.wrong(key, 0, f"{WANTED[type]} above 0")
        return value

    def wrong(self, key: str, value: Value | None, wanted: str) -> ServerError:
        shown = repr(value) if isinstance(value, (int, float, bool)) else f"{str(value)[:40]!r}"
        problem = f"its metadata key {self._full(key)} should be {wanted} and is {shown}"
        message = f"{self.file} cannot be imported: {problem}."
        return ServerError("invalid_request", message, "path")

    def unsupported(self, what: str) -> ServerError:
        return ServerError("unsupported", f"{self.file} cannot be imported: {what}.", "path")

    def _full(self, key: str) -> str:
        return key.replace("{arch}", str(self.values.get("general.architecture"))[:60])
