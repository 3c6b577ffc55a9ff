"""octavo as a BentoML service.

    bentoml serve octavo_adapters.bentoml:Service

serves the default model; `llm_service` and `with_llm` make services of other models, or of your own classes.
"""

from octavo_adapters.bentoml.image import llm_image
from octavo_adapters.bentoml.service import LLMService, llm_service, with_llm

Service = llm_service()

__all__ = ["LLMService", "Service", "llm_image", "llm_service", "with_llm"]
