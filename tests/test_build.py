"""The build of the CPU kernels: what it says when it cannot be done, and that it is not redone for nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
#include <pybind11/pybind11.h>
PYBIND11_MODULE(_native, m) { m.def("answer", [] { return %s; }); }
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build script as hatchling loads it, not in sys.modules, over one source in a directory of the test's own."""
    pytest.importorskip("pybind11")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "SOURCES", tmp_path)
    monkeypatch.setattr(module, "EXTENSION", tmp_path / module.EXTENSION.name)
    monkeypatch.setattr(module, "NOTE", tmp_path / module.NOTE.name)
    (tmp_path / "module.cpp").write_text(SOURCE % 42)
    return module


def test_no_compiler_leaves_a_note_and_goes_on(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    build.EXTENSION.write_bytes(b"of an older version")
    monkeypatch.setenv("CXX", "no-such-compiler")
    build.build_or_note()
    assert not build.EXTENSION.exists()
    assert "install g++" in build.NOTE.read_text()


def test_a_failed_compile_leaves_the_compiler_s_words(build: ModuleType) -> None:
    (build.SOURCES / "module.cpp").write_text("#error something is wrong here\n")
    build.build_or_note()
    assert not build.EXTENSION.exists()
    assert "something is wrong here" in build.NOTE.read_text()


def test_what_has_not_changed_is_not_compiled_again(build: ModuleType) -> None:
    build.NOTE.write_text("no compiler")
    build.build_or_note()
    assert build.EXTENSION.exists()
    assert not build.NOTE.exists()
    objects = {path: path.stat().st_mtime_ns for path in (build.ROOT / "build" / "native").glob("*.o")}
    assert len(objects) == 1
    build.build()
    assert {path: path.stat().st_mtime_ns for path in objects} == objects
    (build.SOURCES / "module.cpp").write_text(SOURCE % 43)
    build.build()
    assert len(list((build.ROOT / "build" / "native").glob("*.o"))) == 1
    assert not any(path.exists() for path in objects)
