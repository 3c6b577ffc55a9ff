"""A GGUF file's metadata and tensor table, read directly from the mapped file.

The `gguf` package's own reader builds a numpy object for every string of the vocabulary, seconds for a real model; this
reads the same format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian) in
a fraction of one. The quantisation types and their dequantisation are the package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from octavo.errors import ConfigError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's place in the file. `shape` is row-major; quantisation blocks lie along the last dimension."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """`metadata` holds numbers, booleans, strings, and lists of these; `tensors` is in the file's order."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Raises ConfigError for a file that is no GGUF, is damaged, or is of a version or type that is not known."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data).parse()
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError, MemoryError) as error:
        raise ConfigError(f"'{path}' is damaged or cut short: its GGUF header ends early ({error})", "model") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"'{path}' is not a readable GGUF file: {error}", "model") from None
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror or error}", "model") from None


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata alone."""
    return read_gguf(path).metadata


class _Parser:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 0

    def parse(self) -> GGUFFile:
        if self._data[:4] != b"GGUF":
            raise ConfigError(f"'{self._path}' is not a GGUF file: it does not begin with 'GGUF'", "model")
        self._at = 4
        version = self._number("<I")
        if version not in (2, 3):
            raise ConfigError(f"'{self._path}' is GGUF version {version}; versions 2 and 3 can be read", "model")
        num_tensors, num_pairs = self._number("<Q"), self._number("<Q")
        metadata = {}
        for _ in range(num_pairs):
            key = self._string()
            metadata[key] = self._value(self._number("<I"))
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        base = -(-self._at // alignment) * alignment
        placed = {}
        for name, shape, kind, offset in tensors:
            block, block_bytes = GGML_QUANT_SIZES[kind]
            num_bytes = math.prod(shape) // block * block_bytes
            if base + offset + num_bytes > len(self._data):
                raise ConfigError(
                    f"'{self._path}' is cut short: tensor '{name}' ends at byte {base + offset + num_bytes}, the file "
                    f"at {len(self._data)}",
                    "model",
                )
            placed[name] = GGUFTensor(name, shape, kind, base + offset, num_bytes)
        return GGUFFile(self._path, metadata, placed)

    def _tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        dimensions = [self._number("<Q") for _ in range(self._number("<I"))]
        code, offset = self._number("<I"), self._number("<Q")
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise ConfigError(f"'{self._path}': tensor '{name}' is of unknown type {code}", "model") from None
        return name, tuple(reversed(dimensions)), kind, offset

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth >= _MAX_DEPTH:
            raise ConfigError(f"'{self._path}' has metadata of unknown type {kind}", "model")
        item, count = self._number("<I"), self._number("<Q")
        if item in _SCALARS:
            form = f"<{count}{_SCALARS[item][1]}"
            values = list(struct.unpack_from(form, self._data, self._at))
            self._at += struct.calcsize(form)
            return values
        return [self._value(item, depth + 1) for _ in range(count)]

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._number("<Q")
        end = self._at + length
        if end > len(self._data):
            raise struct.error(f"a string of {length} bytes at byte {self._at}")
        text = self._data[self._at : end].decode("utf-8")
        self._at = end
        return text
