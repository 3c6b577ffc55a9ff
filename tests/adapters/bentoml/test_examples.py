"""The ready service and the example, as BentoML sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_services_are_found_and_have_their_apis() -> None:
    script = (
        "from _bentoml_impl.loader import load\n"
        "for name in ('octavo_adapters.bentoml:Service', 'examples/bentoml_service.py:Summarizer'):\n"
        "    service = load(name)\n"
        "    print(service.name, sorted(service.apis), service.labels['openai_endpoint'], service.import_string)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    ready, own = ran.stdout.splitlines()[-2:]
    assert ready == "octavo ['chat', 'generate'] /v1 octavo_adapters.bentoml:Service"
    assert own.startswith("Summarizer ['chat', 'generate', 'summarize'] /v1 ")
