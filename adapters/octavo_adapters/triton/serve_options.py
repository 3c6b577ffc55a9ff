"""TritonServeOptions: knobs of `octavo triton serve`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from octavo.validation import Knobs


class TritonServeOptions(Knobs):
    """Immutable.

    Raises:
        ConfigError: an unknown name, a wrong type, or a value out of range.
    """

    noun: ClassVar[str] = "triton option"

    model_repository: str = Field("model_repository", description="Directory of models.")
    load_model: list[str] = Field(default_factory=list, description="Models to load at the start. Default: all.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    http_port: int = Field(8000, ge=1, le=65535, description="Port for HTTP.")
    grpc_port: int = Field(8001, ge=1, le=65535, description="Port for gRPC.")
    metrics_port: int = Field(8002, ge=1, le=65535, description="Port for /metrics.")
    exit_timeout: int = Field(
        40, ge=1, le=86400, description="Seconds that running requests and models have at the end."
    )
    shm_size: int = Field(64 << 20, ge=1 << 20, description="Bytes of shared memory a model's stub begins with.")
    verbose: bool = Field(False, description="Show tritonserver's own log.")
