"""octavo behind Triton, with plain tritonclient: streaming over gRPC, one answer over HTTP.

python examples/triton_client.py [--url 127.0.0.1] [--model octavo] [PROMPT]
"""

from __future__ import annotations

import argparse
import json
import queue
import urllib.request
from typing import Any

import numpy as np
from tritonclient import grpc


def text(name: str, value: str) -> Any:
    tensor = grpc.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
    return tensor


def flag(name: str, value: bool) -> Any:
    tensor = grpc.InferInput(name, [1], "BOOL")
    tensor.set_data_from_numpy(np.array([value]))
    return tensor


def stream(url: str, model: str, prompt: str, parameters: dict[str, Any]) -> None:
    """Prints the answer as it comes."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        inputs = [text("text_input", prompt), text("sampling_parameters", json.dumps(parameters)), flag("stream", True)]
        client.async_stream_infer(model, inputs)
        while True:
            result, error = answers.get()
            if error is not None:
                raise error
            piece = result.as_numpy("text_output")
            if piece is not None:
                print(piece[0].decode(), end="", flush=True)
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    print()


def ask(url: str, model: str, prompt: str, parameters: dict[str, Any]) -> str:
    """One answer over HTTP: request parameters stand beside the tensors."""
    body = {"text_input": prompt, "exclude_input_in_output": True, **parameters}
    request = urllib.request.Request(f"http://{url}/v2/models/{model}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["text_output"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--model", default="octavo")
    options = parser.parse_args()
    parameters = {"max_tokens": 32, "temperature": 0}
    print("gRPC, streamed:")
    stream(f"{options.host}:{options.grpc_port}", options.model, options.prompt, parameters)
    print("HTTP:")
    print(ask(f"{options.host}:{options.http_port}", options.model, options.prompt, parameters))


if __name__ == "__main__":
    main()
