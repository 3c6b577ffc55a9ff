"""Where a tritonserver is, and what it must find around it."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from octavo import ConfigError

BACKEND = Path(__file__).parent / "backend" / "model.py"
_CONTAINER_BACKENDS = Path("/opt/tritonserver/backends")


@dataclass(frozen=True, slots=True)
class Installation:
    """
    Attributes:
        server: the program.
        python_backend: the directory of Triton's Python backend.
        stub: the stub process of this Python's version, where it is not in `python_backend`.
        libraries: what server and stub are linked against, where that is not in the system's places.
    """

    server: Path
    python_backend: Path
    stub: Path | None
    libraries: Path | None

    @classmethod
    def find(cls) -> Installation:
        """The one on the PATH, as in NVIDIA's images, else the one that the package nvidia-pytriton carries.

        Raises:
            ConfigError: there is none, or this environment cannot run its Python backend.
        """
        on_path = shutil.which("tritonserver")
        if on_path is not None and _CONTAINER_BACKENDS.is_dir():
            return cls(Path(on_path), _CONTAINER_BACKENDS / "python", None, None)
        spec = find_spec("pytriton")
        if spec is None or spec.origin is None:
            raise ConfigError(
                "no tritonserver: it is not on the PATH, and nvidia-pytriton, which carries one, is not installed: "
                "pip install 'octavo[triton]'"
            )
        _check_numpy()
        home = Path(spec.origin).parent / "tritonserver"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
        if not stub.exists():
            raise ConfigError(f"this tritonserver has no stub for Python {version}: use another Python")
        libraries = home.parent.parent / "nvidia_pytriton.libs"
        return cls(home / "bin" / "tritonserver", home / "backends" / "python", stub, libraries)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The stub must load this interpreter's libpython, and find this environment's python first."""
        paths = [sysconfig.get_config_var("LIBDIR"), self.libraries, environ.get("LD_LIBRARY_PATH")]
        return {
            **environ,
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in paths if path),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]),
        }

    def lay_out(self, folder: Path) -> Path:
        """Makes a backend directory in `folder`: `python`, and `octavo`. Copies: Triton refuses links that lead out."""
        backends = folder / "backends"
        python = backends / "python"
        python.mkdir(parents=True)
        for file in self.python_backend.iterdir():
            if file.is_file():
                shutil.copy2(file, python)
        if self.stub is not None:
            shutil.copy2(self.stub, python)
        (backends / "octavo").mkdir()
        shutil.copy2(BACKEND, backends / "octavo")
        return backends


def _check_numpy() -> None:
    import numpy as np

    if int(np.__version__.partition(".")[0]) >= 2:
        raise ConfigError(
            f"numpy is {np.__version__}, but the Python backend of this tritonserver crashes on text tensors with "
            "numpy 2: pip install 'numpy<2'"
        )
