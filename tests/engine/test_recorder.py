"""The flight recorder: what it keeps, and that it outlives a core."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import SamplingParams
from octavo.core.step import StepPlan, StepRow
from octavo.engine.pulse import mark_of
from octavo.engine.recorder import MAX_ROWS, NUM_STEPS, FlightRecorder, RecordedRow, StepTimes
from tests.engine.test_async_engine import collect, core_pid
from tests.engine.test_recovery import engine_for, until


def plan(step_id: int, num_rows: int = 2) -> StepPlan:
    return StepPlan(step_id, [StepRow(i, 10 + i, 1 + i, 1, request_id=f"r{i}") for i in range(num_rows)])


def test_what_is_written_is_read() -> None:
    recorder = FlightRecorder.create()
    assert recorder.read() == []
    recorder.begin(plan(1), [7, 8], 12.5, 0.25)
    (step,) = recorder.read()
    assert (step.step_id, step.begin, step.ended, step.num_rows, step.num_tokens) == (1, 12.5, False, 2, 3)
    assert step.rows == (RecordedRow(7, 10, 1), RecordedRow(8, 11, 2))
    recorder.end(StepTimes(0.25, 3.5, 1.5), num_waiting=4, kv_usage=0.5)
    (step,) = recorder.read()
    assert step.ended
    assert step.times == StepTimes(0.25, 3.5, 1.5)
    assert (step.num_waiting, step.kv_usage) == (4, 0.5)
    recorder.close()


def test_only_the_last_steps_are_kept_in_their_order() -> None:
    recorder = FlightRecorder.create()
    for step_id in range(1, NUM_STEPS + 50):
        recorder.begin(plan(step_id), [1, 2], 0.0, 0.0)
        recorder.end(StepTimes(0, 0, 0), 0, 0)
    assert [step.step_id for step in recorder.read()] == list(range(50, NUM_STEPS + 50))
    assert [step.step_id for step in recorder.read(3)] == [NUM_STEPS + 47, NUM_STEPS + 48, NUM_STEPS + 49]


def test_a_large_batch_is_counted_and_its_first_rows_kept() -> None:
    recorder = FlightRecorder.create()
    recorder.begin(plan(1, 100), list(range(100)), 0.0, 0.0)
    recorder.begin(plan(2, 1), [5], 0.0, 0.0)
    large, small = recorder.read()
    assert (large.num_rows, len(large.rows), large.rows[-1].mark) == (100, MAX_ROWS, MAX_ROWS - 1)
    assert small.rows == (RecordedRow(5, 10, 1),)


def test_a_dead_process_leaves_its_steps() -> None:
    recorder = FlightRecorder.create()
    script = (
        "import os, sys; from octavo.core.step import StepPlan, StepRow; "
        "from octavo.engine.recorder import FlightRecorder; "
        "FlightRecorder.attach(int(sys.argv[1])).begin(StepPlan(9, [StepRow(0, 1, 2, 1)]), [3], 0.0, 0.0); "
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(recorder.fileno())], pass_fds=(recorder.fileno(),), check=False)
    (step,) = recorder.read()
    assert (step.step_id, step.ended, step.rows) == (9, False, (RecordedRow(3, 1, 2),))


@pytest.mark.server
async def test_an_engine_tells_its_steps_and_requests_and_dumps_them(tiny_model_path: Path, tmp_path: Path) -> None:
    engine = await engine_for(tiny_model_path, debug_dir=str(tmp_path / "dumps"))
    await collect(engine, [5] * 20, SamplingParams(max_tokens=4, ignore_eos=True), request_id="first")
    steps = engine.recent_steps(4)
    assert [(row.mark, row.start, row.tokens) for step in steps for row in step.rows] == [
        (mark_of("first"), start, tokens) for start, tokens in ((0, 20), (20, 1), (21, 1), (22, 1))
    ]
    assert all(step.ended and step.times.execute > 0 for step in steps)
    task = asyncio.create_task(
        collect(engine, [5] * 8, SamplingParams(max_tokens=400, ignore_eos=True), request_id="second")
    )
    await until(lambda: bool(engine.requests()) and engine.requests()[0].num_output_tokens > 2)
    (state,) = engine.requests()
    assert (state.request_id, state.mark, state.phase) == ("second", mark_of("second"), "decoding")
    assert (state.num_prompt_tokens, state.num_sequences) == (8, 1)
    assert 0 <= state.idle <= state.age
    os.kill(core_pid(engine), signal.SIGKILL)
    await until(lambda: engine.status().state == "recovering")
    assert engine.requests()[0].phase == "held"
    (file,) = (tmp_path / "dumps").iterdir()
    dumped = [json.loads(line) for line in file.read_text().splitlines()]
    assert dumped[-1]["rows"][0]["mark"] == mark_of("second")
    assert len(dumped) > 4
    await task
    await engine.shutdown()
