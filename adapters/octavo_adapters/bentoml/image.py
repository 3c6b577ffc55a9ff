"""llm_image: what a bento's container needs to run octavo."""

from __future__ import annotations

import bentoml

_TORCH_CPU = "https://download.pytorch.org/whl/cpu"
# The CPU kernels are compiled when octavo is installed; without a compiler the slow ones run.
_BUILD_PACKAGES = ("g++", "python3-dev")


def llm_image(*, gpu: bool = False, octavo: str = "octavo", python_version: str = "3.11") -> bentoml.images.Image:
    """An image with octavo in it.

    Args:
        gpu: with a CUDA build of PyTorch, several gigabytes; else the CPU build.
        octavo: what pip is to install: a requirement, or a wheel in `wheels/` beside the service's file:
            `./wheels/octavo-0.1.0-...whl`.
    """
    # Locking asks an index for all packages of another platform; octavo may be a file.
    image = bentoml.images.Image(python_version=python_version, lock_python_packages=False)
    if gpu:
        return image.python_packages("torch", octavo)
    return image.system_packages(*_BUILD_PACKAGES).python_packages(f"--extra-index-url {_TORCH_CPU}", "torch", octavo)
