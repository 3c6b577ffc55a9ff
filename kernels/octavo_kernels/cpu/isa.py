"""Which instruction set the CPU kernels use, and why there are none where there are none."""

from __future__ import annotations

import importlib
import os
from enum import IntEnum
from pathlib import Path
from types import ModuleType

import torch  # noqa: F401  its libgomp must be mapped before the extension, so that both use one thread pool

VARIABLE = "OCTAVO_CPU_ISA"
_NOTE = Path(__file__).with_name("_native_missing.txt")


class Isa(IntEnum):
    """The extension's instruction sets, each with all before it; REFERENCE is plain PyTorch."""

    REFERENCE = -1
    GENERIC = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3


def parse_isa(name: str) -> Isa:
    """Raises ValueError for a name that does not exist."""
    try:
        return Isa[name.upper()]
    except KeyError:
        known = ", ".join(isa.name.lower() for isa in Isa)
        raise ValueError(f"{VARIABLE} is {name!r}; it must be one of {known}") from None


class Selection:
    """The extension, if it was built and is wanted, and the instruction set it uses.

    Attributes:
        missing: why there is no extension, and what to install; None if there is one, or it is not wanted.

    Raises:
        ValueError: OCTAVO_CPU_ISA asks for what does not exist here.
    """

    def __init__(self) -> None:
        self.native: ModuleType | None = None
        self.missing: str | None = None
        name = os.environ.get(VARIABLE)
        wanted = parse_isa(name) if name else None
        if wanted is Isa.REFERENCE:
            return
        try:
            self.native = importlib.import_module("octavo_kernels.cpu._native")
        except ImportError as error:
            self.missing = _NOTE.read_text(encoding="utf-8").strip() if _NOTE.exists() else f"{error}: not built"
        if wanted is not None:
            self.choose(wanted)

    @property
    def isa(self) -> Isa:
        return Isa.REFERENCE if self.native is None else Isa(self.native.active_isa())

    def choose(self, isa: Isa) -> None:
        """Uses `isa` from now on; caches that exist keep their layout, so make them again.

        Raises:
            ValueError: this machine or this build does not have it.
        """
        if self.native is None:
            raise ValueError(f"{isa.name.lower()} needs the native CPU kernels, which are not here: {self.missing}")
        best = Isa(self.native.best_isa())
        if not 0 <= isa <= best:
            raise ValueError(f"{isa.name.lower()} is not available here; generic to {best.name.lower()} are")
        self.native.set_active_isa(int(isa))


SELECTION = Selection()
