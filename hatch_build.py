"""Compiles the CPU kernels, kernels/octavo_kernels/cpu/*.cpp, into one extension beside them.

The hook runs when the package is installed; `python hatch_build.py` builds in place. Without a working compiler the
installation goes on: a note beside the sources says why, and octavo runs its reference kernels.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "kernels" / "octavo_kernels" / "cpu"
EXTENSION = SOURCES / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
NOTE = SOURCES / "_native_missing.txt"

# The end of a source's name says which instructions it may use; whoever calls into it checks the machine first. One
# that ends in `simd` is compiled for the base set and for each of SIMD, in a namespace OCTAVO_ISA of its own.
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
VARIANTS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "vnni": (*_AVX512, "-mavx512vnni"),
    "amx": (*_AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
}
SIMD = ("avx2", "avx512", "amx")
# Contraction to fused multiply-add is off by default in ISO mode; errno would keep loops from being vectorised.
COMPILE = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno")
STRICT = ("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-psabi", "-Wno-ignored-attributes")


class BuildError(Exception):
    """Why there is no extension, for the person who installs."""


class Compiler(NamedTuple):
    """
    Attributes:
        command: the program, and what it is always given.
        sanitize: adds -fsanitize=<this>.
    """

    command: tuple[str, ...]
    sanitize: str | None = None

    @classmethod
    def find(cls, sanitize: str | None = None) -> Compiler:
        named = os.environ.get("CXX")
        candidates = [shlex.split(named)] if named else [["g++"], ["clang++"], ["c++"]]
        for candidate in candidates:
            if candidate and shutil.which(candidate[0]):
                return cls(tuple(candidate), sanitize)
        wanted = f"the compiler that CXX names, {named!r}, was not found" if named else "no C++ compiler was found"
        raise BuildError(f"{wanted}: install g++ (Debian, Ubuntu: apt-get install g++)")

    def run(self, arguments: Sequence[str]) -> None:
        extra = [f"-fsanitize={self.sanitize}", "-fno-sanitize-recover=all", "-g"] if self.sanitize else []
        command = [*self.command, *extra, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")

    def accepts(self, flags: Sequence[str]) -> bool:
        probe = [*self.command, *flags, "-x", "c++", "-c", os.devnull, "-o", os.devnull]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def build(sanitize: str | None = None) -> Path:
    """Compiles what has changed, links all, and returns the extension. Raises BuildError."""
    compiler = Compiler.find(sanitize)
    objects = ROOT / "build" / "native"
    objects.mkdir(parents=True, exist_ok=True)
    usable = _variants(compiler)
    defines = [f"-DOCTAVO_WITH_{name.upper()}" for name in usable]
    flags = [*COMPILE, *STRICT, *defines, *(f"-I{folder}" for folder in _include_folders())]
    headers = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.hpp")))

    def compile_one(job: tuple[Path, str | None]) -> Path:
        source, variant = job
        chosen = [*flags, f"-DOCTAVO_ISA={variant or 'generic'}", *(VARIANTS[variant] if variant else ())]
        key = hashlib.sha256(repr((compiler, chosen)).encode() + headers + source.read_bytes()).hexdigest()[:16]
        stem = f"{source.stem}-{variant or 'generic'}"
        target = objects / f"{stem}-{key}.o"
        if not target.exists():
            for stale in objects.glob(f"{stem}-????????????????.o"):
                stale.unlink(missing_ok=True)
            partial = target.with_suffix(f".{os.getpid()}.tmp")
            compiler.run([*chosen, "-c", str(source), "-o", str(partial)])
            partial.replace(target)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(compile_one, _jobs(usable)))
    partial = EXTENSION.with_suffix(f".{os.getpid()}.tmp")
    compiler.run(["-shared", "-fopenmp", *map(str, compiled), "-o", str(partial)])
    partial.replace(EXTENSION)
    NOTE.unlink(missing_ok=True)
    return EXTENSION


def build_or_note() -> None:
    """Builds; where that fails, leaves a note that octavo shows at start-up."""
    try:
        build()
    except (BuildError, OSError) as error:
        EXTENSION.unlink(missing_ok=True)
        NOTE.write_text(f"{error}\n", encoding="utf-8")
        print(f"octavo: the CPU kernels were not built; the slow reference kernels run. {error}", file=sys.stderr)  # noqa: T201


def _jobs(usable: Sequence[str]) -> list[tuple[Path, str | None]]:
    """Each source with the instruction sets it is compiled for; None is the base set."""
    jobs: list[tuple[Path, str | None]] = []
    for source in sorted(SOURCES.glob("*.cpp")):
        ending = source.stem.rpartition("_")[2]
        if ending == "simd":
            jobs += [(source, None), *((source, name) for name in SIMD if name in usable)]
        elif ending not in VARIANTS:
            jobs.append((source, None))
        elif ending in usable:
            jobs.append((source, ending))
    return jobs


def _variants(compiler: Compiler) -> list[str]:
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return []
    return [name for name, flags in VARIANTS.items() if compiler.accepts(flags)]


def _include_folders() -> list[str]:
    try:
        import pybind11
    except ImportError as error:
        raise BuildError("pybind11 is not installed: pip install pybind11") from error
    python = sysconfig.get_paths()["include"]
    if not (Path(python) / "Python.h").exists():
        raise BuildError(
            f"{python}/Python.h is missing: install python3-dev (Debian, Ubuntu: apt-get install python3-dev)"
        )
    return [python, pybind11.get_include()]


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the extension before hatchling collects the wheel's files, the editable one's too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_or_note()
        build_data["artifacts"] += [f"/{path.relative_to(ROOT).as_posix()}" for path in (EXTENSION, NOTE)]
        if EXTENSION.exists():
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    sanitizer = sys.argv[1].removeprefix("--sanitize=") if len(sys.argv) > 1 else None
    try:
        print(build(sanitizer))  # noqa: T201
    except BuildError as failure:
        sys.exit(f"octavo: the CPU kernels were not built. {failure}")
