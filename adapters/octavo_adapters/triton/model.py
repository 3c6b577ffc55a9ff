"""TritonPythonModel: what Triton's stub process runs. Importable there alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from octavo import ConfigError
from octavo.observe.logs import setup_logging
from octavo.tensors import INPUTS, OUTPUTS, TensorSpec
from octavo_adapters.triton.devices import instance_number, visible_devices
from octavo_adapters.triton.engine_thread import EngineThread
from octavo_adapters.triton.exchanges import Exchanges
from octavo_adapters.triton.guard import Guard
from octavo_adapters.triton.metrics import MetricsBridge
from octavo_adapters.triton.options import AdapterOptions, read_engine_config
from octavo_adapters.triton.responses import Responses

_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}


class TritonPythonModel:
    """One instance: one engine. `execute` only hands over; the engine answers from threads of its own."""

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: Any) -> Any:
        """Adds the tensors that are missing; keeps what the user wrote. Decoupled, and no batching by Triton."""
        config = auto_complete_model_config.as_dict()
        given = {tensor["name"] for part in ("input", "output") for tensor in config[part]}
        for spec in INPUTS:
            if spec.name not in given:
                auto_complete_model_config.add_input({**_described(spec), "optional": spec.optional})
        for spec in OUTPUTS:
            if spec.name not in given:
                auto_complete_model_config.add_output(_described(spec))
        config.setdefault("model_transaction_policy", {})["decoupled"] = True
        config["max_batch_size"] = 0
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the engine; Triton holds the model back until this returns.

        Raises:
            TritonModelException: with one sentence that says what is wrong.
        """
        try:
            self._initialize(args)
        except ConfigError as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def _initialize(self, args: dict[str, str]) -> None:
        model_config = json.loads(args["model_config"])
        version_dir = Path(args["model_repository"]) / args["model_version"]
        config = read_engine_config(version_dir, args["model_name"])
        options = AdapterOptions.from_model_config(model_config)
        setup_logging(config.log_level, log_format=config.log_format)
        devices = visible_devices(
            kind=args["model_instance_kind"].removeprefix("KIND_"),
            device_id=int(args["model_instance_device_id"]),
            instance=instance_number(args["model_instance_name"]),
            gpu_device_ids=options.gpu_device_ids,
            outer=os.environ.get("CUDA_VISIBLE_DEVICES"),
            world_size=1,
        )
        if devices is not None:
            # This process is the instance's own, and its engine's core inherits it.
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        # Triton's stub ignores PYTHONPATH, a python that it starts does not: both must import the same octavo.
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._name = args["model_name"]
        self._drain_timeout = options.drain_timeout
        self._asked_for_readiness = False
        self._guard = Guard()
        self._guard.start()
        self._engine = EngineThread(config, on_dead=self._on_dead)
        try:
            self._engine.start()
        except BaseException:
            self._guard.stop()
            raise
        self._responses = Responses(pb_utils)
        self._responses.start()
        self._exchanges = Exchanges(self._engine, self._responses)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._metrics = MetricsBridge(pb_utils, self._engine, labels)
        self._metrics.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Hands each request to the engine's thread. Nothing is computed here, and nothing waited for."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs, parameters = _read(request)
            except Exception as error:  # noqa: BLE001 - one request's fault must not reach the others
                self._exchanges.refuse(sender, error)
                continue
            self._exchanges.begin(sender, inputs, parameters)

    def is_ready(self) -> bool:
        """Asked by Triton, from 26.03 on, for `/v2/models/<m>/ready`."""
        self._asked_for_readiness = True
        return self._engine.engine.status().state == "ready"

    def finalize(self) -> None:
        """Running requests may finish, up to `drain_timeout`; then they are aborted, and the engine's process ends."""
        self._metrics.stop()
        self._engine.stop(self._drain_timeout)
        self._responses.stop()
        self._guard.stop()

    def _on_dead(self, reason: str) -> None:
        """A Triton that does not ask `is_ready` learns of it by the model's being unloaded."""
        if self._asked_for_readiness:
            return
        with contextlib.suppress(Exception):
            pb_utils.unload_model(self._name)


def _described(spec: TensorSpec) -> dict[str, Any]:
    kind = _TYPES.get(spec.datatype, f"TYPE_{spec.datatype}")
    return {"name": spec.name, "data_type": kind, "dims": list(spec.dims)}


def _read(request: Any) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Copies out of Triton's shared memory: (values by input tensor, request parameters)."""
    inputs = {tensor.name(): tensor.as_numpy().reshape(-1).tolist() for tensor in request.inputs()}
    return inputs, json.loads(request.parameters() or "{}")
