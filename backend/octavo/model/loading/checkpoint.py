"""Checkpoint: named tensors on disk, read in slices of rows so that memory holds little beside the model itself.

Files are mapped and each slice's pages are given back once it has been copied: resident memory counts mapped pages too,
and a file left mapped would double the model while it loads.
"""

from __future__ import annotations

import json
import math
import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from octavo.errors import ConfigError
from octavo.model.loading.gguf_file import read_gguf

_SAFETENSORS_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_GGUF_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_GGUF_QUANTISED = {GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")}


class Checkpoint(ABC):
    """Named tensors. `read_rows` is the only way to content."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape, row-major."""

    @abstractmethod
    def file_of(self, name: str) -> Path:
        """The file a tensor lies in, for messages."""

    @abstractmethod
    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows start .. stop-1 of the first dimension, in a floating dtype; valid until the next call.

        Raises:
            ConfigError: the tensor is stored in a way octavo cannot read.
        """

    @abstractmethod
    def low_bit_types(self) -> set[str]:
        """Names of the low-bit formats among the tensors."""


class _MappedFile:
    """A file mapped privately, so that numpy may see it as writable without a copy."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._last: tuple[int, int] | None = None

    def view(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """uint8 [num_bytes]; pages of the previous view are given back first."""
        self.forget()
        first = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._last = (first, offset + num_bytes - first)
        return np.frombuffer(self._map, np.uint8, num_bytes, offset)

    def forget(self) -> None:
        if self._last is not None:
            self._map.madvise(mmap.MADV_DONTNEED, *self._last)
            self._last = None


@dataclass(frozen=True, slots=True)
class _Stored:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsCheckpoint(Checkpoint):
    """All safetensors files of a directory, sharded or not (https://github.com/huggingface/safetensors)."""

    def __init__(self, directory: Path) -> None:
        self._tensors: dict[str, _Stored] = {}
        for file in _safetensors_files(directory):
            self._tensors |= _read_header(file)
        self._maps = {file: _MappedFile(file) for file in {stored.file for stored in self._tensors.values()}}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.shape for name, stored in self._tensors.items()}

    def file_of(self, name: str) -> Path:
        return self._tensors[name].file

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        stored = self._tensors[name]
        dtype = _SAFETENSORS_DTYPES.get(stored.dtype)
        if dtype is None:
            known = ", ".join(_SAFETENSORS_DTYPES)
            raise ConfigError(
                f"weight '{name}' in {stored.file} is stored as {stored.dtype}; octavo reads {known}", "model"
            )
        row_bytes = math.prod(stored.shape[1:]) * dtype.itemsize
        raw = self._maps[stored.file].view(stored.offset + start * row_bytes, (stop - start) * row_bytes)
        return torch.from_numpy(raw).view(dtype).view(stop - start, *stored.shape[1:])

    def low_bit_types(self) -> set[str]:
        return set()


class GGUFCheckpoint(Checkpoint):
    """One GGUF file; quantised tensors are dequantised to float32 as they are read."""

    def __init__(self, path: Path) -> None:
        self._file = read_gguf(path)
        self._map = _MappedFile(path)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._file.tensors.items()}

    def file_of(self, name: str) -> Path:
        return self._file.path

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        tensor = self._file.tensors[name]
        if tensor.type not in _GGUF_PLAIN and tensor.type not in _GGUF_QUANTISED:
            known = ", ".join(kind.name for kind in (*_GGUF_PLAIN, *sorted(_GGUF_QUANTISED)))
            raise ConfigError(
                f"weight '{name}' in {self._file.path} is quantised as {tensor.type.name}; octavo reads {known}",
                "model",
            )
        block, block_bytes = GGML_QUANT_SIZES[tensor.type]
        row_bytes = math.prod(tensor.shape[1:]) // block * block_bytes
        raw = self._map.view(tensor.offset + start * row_bytes, (stop - start) * row_bytes)
        shape = (stop - start, *tensor.shape[1:])
        if tensor.type in _GGUF_PLAIN:
            return torch.from_numpy(raw).view(_GGUF_PLAIN[tensor.type]).view(shape)
        return torch.from_numpy(dequantize(raw.reshape(stop - start, row_bytes), tensor.type)).view(shape)

    def low_bit_types(self) -> set[str]:
        return {tensor.type.name for tensor in self._file.tensors.values() if tensor.type in _GGUF_QUANTISED}


def _safetensors_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"'{index}' is not a readable index of shards: {error}", "model") from None
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise ConfigError(f"'{directory}' lacks the shard {missing[0]} that its index names", "model")
        return [directory / name for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if files:
        return files
    hint = "; it has PyTorch .bin files only: convert them to safetensors" if list(directory.glob("*.bin")) else ""
    raise ConfigError(f"'{directory}' has no safetensors files{hint}", "model")


def _read_header(file: Path) -> dict[str, _Stored]:
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        tensors = {
            name: _Stored(file, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
        }
        end = max((8 + length + entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{file}' is not a readable safetensors file: {error}", "model") from None
    if end > size:
        raise ConfigError(f"'{file}' is cut short: its tensors end at byte {end}, the file at {size}", "model")
    return tensors
