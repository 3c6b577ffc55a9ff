"""`octavo triton`: commands that the core's command line finds by entry point."""

from __future__ import annotations

from octavo.commandline import CommandGroup, KnobCommand
from octavo.flags import FlagGroup
from octavo_adapters.triton.serve_options import TritonServeOptions

serve = KnobCommand(
    "serve",
    "octavo_adapters.triton.serve:run",
    summary="Run a tritonserver, in the foreground, on a model repository whose models octavo serves.",
    groups=[FlagGroup("Triton", TritonServeOptions)],
    epilog="Needs pip install 'octavo[triton]', or a tritonserver of NVIDIA's on the PATH. Ctrl-C ends it.",
)

triton = CommandGroup("triton", [serve], summary="octavo inside NVIDIA Triton Inference Server.")
