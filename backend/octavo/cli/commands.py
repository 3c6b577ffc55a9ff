"""What commands there are and what they take. What they do is imported when they run: help needs no torch."""

from __future__ import annotations

import click

from octavo.bench.workload import LatencyWorkload, ServeWorkload, ThroughputWorkload
from octavo.cli.plugins import installed_commands
from octavo.commandline import CommandGroup, KnobCommand, engine_group
from octavo.flags import FlagGroup
from octavo.sampling_params import SamplingParams
from octavo.server.__main__ import serve

# The engine's --seed does what a request's seed would; several flags at once make no conversation.
_SAMPLING = FlagGroup("Sampling", SamplingParams, skip=frozenset({"seed"}))
_CHAT_SAMPLING = FlagGroup(
    "Sampling",
    SamplingParams,
    skip=frozenset({"seed", "n", "logprobs", "prompt_logprobs", "detokenize", "ignore_eos", "min_tokens"}),
)

_OUTPUTS = (
    click.Option(["json_file", "--json"], metavar="FILE", type=click.Path(dir_okay=False), help="Write results here."),
    click.Option(
        ["plot_file", "--plot"], metavar="FILE", type=click.Path(dir_okay=False), help="Draw them here, as PNG."
    ),
)

generate = KnobCommand(
    "generate",
    "octavo.cli.generate:run",
    summary="Complete PROMPT, or every line of a JSONL file; write JSONL.",
    epilog=(
        'A line of --input is {"prompt": text}, {"prompt_token_ids": [ids]} or {"messages": [...]}, with any sampling '
        "parameters beside it, and an id if you like. A bad line becomes an output line with an error; the others run."
    ),
    groups=[_SAMPLING, engine_group()],
    extras=[
        click.Argument(["prompt"], metavar="[PROMPT]", required=False),
        click.Option(["input_file", "--input"], metavar="FILE", help="JSONL of requests; - is stdin."),
        click.Option(["output_file", "--output"], metavar="FILE", help="Where the JSONL goes.  [default: stdout]"),
    ],
)

chat = KnobCommand(
    "chat",
    "octavo.cli.chat:run",
    summary="Talk to a model in the terminal. /reset forgets, /exit or Ctrl-D leaves, Ctrl-C stops an answer.",
    groups=[_CHAT_SAMPLING, engine_group(skip=frozenset({"skip_tokenizer_init"}), log_level="warning")],
    extras=[click.Option(["system", "--system"], metavar="TEXT", help="System prompt.")],
    model_argument=True,
)

throughput = KnobCommand(
    "throughput",
    "octavo.bench.throughput:run",
    summary="Tokens per second of a batch of requests, offline.",
    groups=[FlagGroup("Workload", ThroughputWorkload), engine_group(max_num_seqs=32, log_level="warning")],
    extras=_OUTPUTS,
    model_argument=True,
)

latency = KnobCommand(
    "latency",
    "octavo.bench.latency:run",
    summary="Time to first token and tokens per second of one request at a time, beside the memory bandwidth.",
    groups=[FlagGroup("Workload", LatencyWorkload), engine_group(log_level="warning")],
    extras=_OUTPUTS,
    model_argument=True,
)

bench_serve = KnobCommand(
    "serve",
    "octavo.bench.serve:run",
    summary="Concurrent streaming clients against the URL of any OpenAI server.",
    groups=[FlagGroup("Workload", ServeWorkload)],
    extras=_OUTPUTS,
)

bench = CommandGroup("bench", [throughput, latency, bench_serve], summary="Measure throughput, latency or a server.")

octavo = CommandGroup(
    "octavo",
    [serve, generate, chat, bench, *installed_commands()],
    summary="Serve, run and measure large language models.",
    version=True,
)
