"""Products with packed weights against float64, over shapes that do and do not fill tiles, panels and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from octavo_kernels import Isa, PackedWeight, cpu_isa, pack_weight, set_cpu_isa
from octavo_kernels.packed_weight import GatedActivation

pytestmark = pytest.mark.skipif(cpu_isa() is not Isa.AMX, reason="packed products need a CPU with AMX")

ROWS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 65, 100, 300]
SHAPES = [(32, 32), (48, 64), (50, 70), (33, 31), (960, 576), (576, 1536), (97, 100), (2, 8)]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def packed(weight: torch.Tensor, bias: torch.Tensor | None = None, *, gated: bool = False) -> PackedWeight:
    found = pack_weight(weight, bias, gated=gated)
    assert found is not None
    return found


def multiply(layer: PackedWeight, x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The product in a buffer that was poisoned, inside a wider one that must stay as it is."""
    room = torch.full((len(x), layer.outputs + 3), float("nan"), dtype=dtype)
    layer.multiply(x, room[:, 1:-2])
    assert room[:, 0].isnan().all()
    assert room[:, -2:].isnan().all()
    return room[:, 1:-2]


def multiply_gated(layer: PackedWeight, x: torch.Tensor, activation: GatedActivation) -> torch.Tensor:
    room = torch.full((len(x), layer.outputs // 2 + 3), float("nan"), dtype=torch.bfloat16)
    layer.multiply_gated(x, activation, room[:, 1:-2])
    assert room[:, 0].isnan().all()
    assert room[:, -2:].isnan().all()
    return room[:, 1:-2]


def case(rows: int, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows * 1000 + outputs + inputs)
    weight, x, bias = torch.randn(outputs, inputs), torch.randn(rows, inputs), torch.randn(outputs)
    return weight.bfloat16(), x.bfloat16(), bias.bfloat16()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_product(rows: int, outputs: int, inputs: int, threads: int) -> None:
    weight, x, bias = case(rows, outputs, inputs)
    want = x.double() @ weight.double().T
    for given in (None, bias):
        layer = packed(weight, given)
        exact = want if given is None else want + given.double()
        wide = multiply(layer, x, torch.float32)
        torch.testing.assert_close(wide.double(), exact, atol=1e-4 * inputs**0.5, rtol=1e-5)
        assert torch.equal(multiply(layer, x), wide.bfloat16())


@pytest.mark.parametrize(("outputs", "inputs"), [shape for shape in SHAPES if shape[0] % 2 == 0])
@pytest.mark.parametrize("rows", ROWS)
def test_gated_product(rows: int, outputs: int, inputs: int, threads: int) -> None:
    weight, x, bias = case(rows, outputs, inputs)
    activations: dict[GatedActivation, Callable[[torch.Tensor], torch.Tensor]] = {
        "silu": F.silu,
        "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
    }
    for name, activation in activations.items():
        for given in (None, bias):
            gate, up = (x.double() @ weight.double().T + (0 if given is None else given.double())).chunk(2, -1)
            got = multiply_gated(packed(weight, given, gated=True), x, name)
            torch.testing.assert_close(got.double(), activation(gate) * up, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("inputs", [4096, 4128, 6200, 11008])
@pytest.mark.parametrize("rows", [100, 300])
def test_many_rows_of_many_inputs(rows: int, inputs: int, threads: int) -> None:
    """Rows too long for the cache are computed in chunks, whose sums wait in memory."""
    weight, x, _ = case(rows, 130, inputs)
    want = x.double() @ weight.double().T
    torch.testing.assert_close(multiply(packed(weight), x, torch.float32).double(), want, atol=1e-2, rtol=1e-5)
    gate, up = want.chunk(2, -1)
    got = multiply_gated(packed(weight, gated=True), x, "silu")
    torch.testing.assert_close(got.double(), F.silu(gate) * up, atol=2e-2, rtol=1e-2)


def test_gates_far_from_zero() -> None:
    """The exponential saturates there; it must give 0 and the identity, not NaN."""
    weight = torch.cat((torch.eye(32) * 200, torch.eye(32))).bfloat16()
    x = torch.tensor([[-1.0, 1.0, 0.0, -0.4] * 8]).bfloat16()
    got = multiply_gated(packed(weight, gated=True), x, "silu")
    torch.testing.assert_close(got.float(), F.silu(x.float() * 200) * x.float(), atol=1e-6, rtol=1e-2)


def test_rows_that_lie_apart() -> None:
    weight, x, _ = case(40, 64, 96)
    layer = packed(weight)
    wide = torch.full((40, 200), float("nan"), dtype=torch.bfloat16)
    wide[:, 7 : 7 + 96] = x
    assert torch.equal(multiply(layer, wide[:, 7 : 7 + 96]), multiply(layer, x))
    assert torch.equal(multiply(layer, x.T.contiguous().T), multiply(layer, x))


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_lookup(outputs: int, inputs: int) -> None:
    weight, _, _ = case(1, outputs, inputs)
    ids = torch.randint(0, outputs, (150,))
    assert torch.equal(packed(weight).rows(ids), weight[ids])
    assert packed(weight).rows(ids[:0]).shape == (0, inputs)
    with pytest.raises(IndexError, match=str(outputs)):
        packed(weight).rows(torch.tensor([outputs]))
    with pytest.raises(IndexError, match="-1"):
        packed(weight).rows(torch.tensor([-1]))
    for wrong in (ids.int(), ids.view(15, 10)):
        with pytest.raises(ValueError, match="ids must be int64"):
            packed(weight).rows(wrong)


def test_a_part_of_a_larger_weight() -> None:
    weight, x, _ = case(5, 64, 96)
    wide = torch.zeros(64, 300, dtype=torch.bfloat16)
    wide[:, 100:196] = weight
    assert torch.equal(multiply(packed(wide[:, 100:196]), x), multiply(packed(weight), x))


def test_runs_and_threads_agree_to_the_bit() -> None:
    """A race would show as a run that differs; rows must not depend on how panels fall to threads."""
    weight, x, _ = case(70, 960, 576)
    layer = packed(weight)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3, 2, 2, 2):
        torch.set_num_threads(threads)
        results.append(multiply(layer, x))
    torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    weight, x, _ = case(100, 576, 576)
    layer = packed(weight)
    whole = multiply(layer, x, torch.float32)
    for rows in (slice(0, 1), slice(40, 57), slice(99, 100)):
        assert torch.equal(multiply(layer, x[rows], torch.float32), whole[rows])


def test_what_it_does_not_take() -> None:
    weight, x, bias = case(3, 64, 96)
    layer = packed(weight)
    assert pack_weight(weight.float()) is None
    assert pack_weight(weight[:, :0]) is None
    assert pack_weight(weight[:0]) is None
    for bad in (x.float(), x[:, :95], x[0]):
        with pytest.raises(ValueError, match="x must be bfloat16"):
            multiply(layer, bad)
    for out in (torch.empty(2, 64), torch.empty(3, 63), torch.empty(3, 64).half(), torch.empty(64, 3).T):
        with pytest.raises(ValueError, match="out must be"):
            layer.multiply(x, out)
    with pytest.raises(ValueError, match="out must be"):
        packed(weight, gated=True).multiply_gated(x, "silu", torch.empty(3, 32))
    for wrong in (bias[:63], bias.float()):
        with pytest.raises(ValueError, match=r"bias must be torch.bfloat16 \[64\]"):
            pack_weight(weight, wrong)
    out = torch.empty(3, 64).bfloat16()
    with pytest.raises(ValueError, match="multiply_gated"):
        packed(weight, gated=True).multiply(x, out)
    with pytest.raises(ValueError, match="not packed as gated"):
        layer.multiply_gated(x, "silu", out)
    with pytest.raises(ValueError, match="no rows"):
        packed(weight, gated=True).rows(torch.tensor([0]))


def test_other_instruction_sets_leave_it_to_pytorch() -> None:
    weight, _, _ = case(3, 64, 96)
    try:
        set_cpu_isa(Isa.AVX512)
        assert pack_weight(weight) is None
    finally:
        set_cpu_isa(Isa.AMX)
