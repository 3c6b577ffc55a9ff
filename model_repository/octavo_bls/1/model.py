"""Puts a question into a prompt, asks octavo, and streams the answer with a mark at its end."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

PARAMETERS = {"max_tokens": 32, "temperature": 0}


class TritonPythonModel:
    def initialize(self, args):
        self.model = json.loads(args["model_config"])["parameters"]["model"]["string_value"]

    def execute(self, requests):
        for request in requests:
            self._answer(request)

    def _answer(self, request):
        sender = request.get_response_sender()
        question = pb_utils.get_input_tensor_by_name(request, "question").as_numpy()[0].decode()
        call = pb_utils.InferenceRequest(
            model_name=self.model,
            requested_output_names=["text_output"],
            inputs=[
                _text("text_input", f"Question: {question}\nAnswer:"),
                _text("sampling_parameters", json.dumps(PARAMETERS)),
                pb_utils.Tensor("stream", np.array([True])),
            ],
        )
        for response in call.exec(decoupled=True):
            if response.has_error():
                sender.send(
                    pb_utils.InferenceResponse(error=response.error()),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
                return
            text = pb_utils.get_output_tensor_by_name(response, "text_output")
            if text is not None:
                sender.send(pb_utils.InferenceResponse([_text("answer", text.as_numpy()[0].decode())]))
        sender.send(
            pb_utils.InferenceResponse([_text("answer", " [end]")]),
            flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )


def _text(name, value):
    return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))
