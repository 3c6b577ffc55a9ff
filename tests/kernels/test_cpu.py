"""Every native kernel against the reference, with each instruction set of the machine forced in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import octavo_kernels as kernels
from octavo_kernels import Isa, reference
from tests.kernels.ragged import CPU, Shape, poisoned_cache, ragged

pytestmark = pytest.mark.skipif(
    kernels.missing_cpu_kernels() is not None, reason=f"no native kernels: {kernels.missing_cpu_kernels()}"
)

# Against float32 arithmetic on the same inputs, as shares of the largest value: float32 kernels differ by the order of
# their sums; bfloat16 ones round weights and results to 8 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}
NATIVE = [isa for isa in Isa if isa is not Isa.REFERENCE]


@pytest.fixture(params=NATIVE, ids=lambda isa: isa.name.lower())
def isa(request: pytest.FixtureRequest) -> Iterator[Isa]:
    before = kernels.cpu_isa()
    try:
        kernels.set_cpu_isa(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield request.param
    kernels.set_cpu_isa(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Lets a test set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value; NaN if anything is."""
    return float((got.float() - want.float()).abs().max() / want.float().abs().max())


def edges(block: int) -> list[tuple[int, int]]:
    """(context, new tokens): block edges, chunk edges, prefills, chunked prefills and decodes."""
    return [
        (1, 1),
        (block - 1, 1),
        (block, 1),
        (block + 1, 1),
        (block, block),
        (2 * block, block + 1),
        (3 * block + 2, 7),
        (256, 1),
        (257, 2),
        (600, 90),
        (1500, 1),
    ]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 7},
    "wide window": {"sliding_window": 300},
    "soft cap": {"soft_cap": 3.0},
    "alibi": {"alibi": True},
    "all": {"sliding_window": 100, "soft_cap": 5.0, "alibi": True},
}
SHAPES = [(3, 3, 64), (9, 3, 64), (4, 1, 80), (8, 1, 96), (8, 2, 128), (4, 1, 256), (2, 2, 40), (71, 1, 32)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_attention(
    isa: Isa, heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, variant: str
) -> None:
    torch.manual_seed(heads * block_size + head_dim)
    case = ragged(Shape(heads, kv_heads, head_dim, block_size, dtype), edges(block_size))
    options = dict(VARIANTS[variant], scale=head_dim**-0.5)
    if options.pop("alibi", False):
        options["alibi_slopes"] = torch.linspace(0.1, 0.9, heads)
    out = torch.full((len(case.query), heads, head_dim), float("nan"), dtype=dtype)
    assert kernels.paged_attention(case.query, case.native, case.batch, **options, out=out) is out
    want = reference.paged_attention(case.query.float(), case.reference, case.batch, **options)
    assert distance(out, want) < TOLERANCE[dtype]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 700), st.integers(1, 100)), min_size=1, max_size=6),
    group=st.sampled_from([1, 3, 4, 8]),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 32, 64, 72, 128]),
    block_size=st.sampled_from([16, 32, 64, 128, 256]),
    dtype=st.sampled_from(list(TOLERANCE)),
    window=st.none() | st.integers(1, 400),
)
def test_attention_of_any_batch(
    isa: Isa,
    lengths: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
) -> None:
    shape = Shape(group * kv_heads, kv_heads, head_dim, block_size, dtype)
    case = ragged(shape, [(context, min(context, new)) for context, new in lengths])
    got = kernels.paged_attention(case.query, case.native, case.batch, scale=0.1, sliding_window=window)
    want = reference.paged_attention(case.query.float(), case.reference, case.batch, scale=0.1, sliding_window=window)
    assert distance(got, want) < TOLERANCE[dtype]


def test_large_scores_do_not_overflow(isa: Isa) -> None:
    case = ragged(Shape(4, 2, 64), [(700, 1), (300, 40)], scale=100.0)
    got = kernels.paged_attention(case.query, case.native, case.batch, scale=1.0)
    want = reference.paged_attention(case.query, case.reference, case.batch, scale=1.0)
    # Scores in the thousands carry rounding errors of 1e-4, which become the weights' relative errors.
    assert distance(got, want) < 2e-3


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_threads_and_company_change_no_bit(isa: Isa, threads: None, dtype: torch.dtype) -> None:
    """A race shows as runs that differ; so would a split of the keys that depends on the batch."""
    torch.manual_seed(3)
    case = ragged(Shape(6, 2, 64, 16, dtype), [(3000, 1), (40, 40), (900, 33), (257, 1), (5, 1)])
    torch.set_num_threads(1)
    once = kernels.paged_attention(case.query, case.native, case.batch, scale=0.125)
    for count in (2, 3, 4):
        torch.set_num_threads(count)
        for _ in range(10):
            again = kernels.paged_attention(case.query, case.native, case.batch, scale=0.125)
            assert torch.equal(again, once)
    torch.set_num_threads(2)
    for row in range(len(case.batch.seq_lens)):
        begin, end = case.batch.query_start[row : row + 2].tolist()
        alone = kernels.AttentionBatch(
            query_start=torch.tensor([0, end - begin], dtype=torch.int32),
            seq_lens=case.batch.seq_lens[row : row + 1],
            block_table=case.batch.block_table[row : row + 1],
            slot_mapping=case.batch.slot_mapping[begin:end],
            max_query_len=end - begin,
            max_seq_len=int(case.batch.seq_lens[row]),
        )
        got = kernels.paged_attention(case.query[begin:end], case.native, alone, scale=0.125)
        assert torch.equal(got, once[begin:end])


def test_last_token_of_a_prefill_equals_its_decode(isa: Isa) -> None:
    """The same query over the same keys, once as one row of a prefill's tile and once alone."""
    torch.manual_seed(4)
    case = ragged(Shape(6, 2, 64, 16, torch.bfloat16), [(500, 120)])
    whole = kernels.paged_attention(case.query, case.native, case.batch, scale=0.125)
    single = kernels.AttentionBatch(
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=case.batch.seq_lens,
        block_table=case.batch.block_table,
        slot_mapping=case.batch.slot_mapping[-1:],
        max_query_len=1,
        max_seq_len=500,
    )
    assert torch.equal(kernels.paged_attention(case.query[-1:], case.native, single, scale=0.125), whole[-1:])


def test_float32_queries_over_a_bfloat16_cache(isa: Isa) -> None:
    case = ragged(Shape(4, 2, 64, 16, torch.bfloat16), [(70, 5), (33, 1)])
    got = kernels.paged_attention(case.query.float(), case.native, case.batch, scale=0.125)
    assert got.dtype == torch.float32
    want = reference.paged_attention(case.query.float(), case.reference, case.batch, scale=0.125)
    assert distance(got, want) < TOLERANCE[torch.bfloat16]


def test_no_sequences_and_no_tokens(isa: Isa) -> None:
    cache = poisoned_cache(Shape(2, 1, 32), 1)
    nothing = torch.empty(0, dtype=torch.int32)
    batch = kernels.AttentionBatch(nothing.new_zeros(1), nothing, nothing.view(0, 0), nothing.long(), 0, 0)
    assert kernels.paged_attention(torch.empty(0, 2, 32), cache, batch, scale=1.0).shape == (0, 2, 32)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
def test_copied_blocks_are_read_like_their_source(isa: Isa, dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 64, 16, dtype)
    case = ragged(shape, [(40, 1)])
    want = kernels.paged_attention(case.query, case.native, case.batch, scale=0.125)
    block = int(case.batch.block_table[0, 1])
    spare = next(b for b in range(case.native.num_blocks) if b not in case.batch.block_table[0].tolist())
    kernels.copy_blocks([case.native], [(block, spare)])
    case.batch.block_table[0, 1] = spare
    case.native.keys[block] = float("nan")
    assert torch.equal(kernels.paged_attention(case.query, case.native, case.batch, scale=0.125), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (32, 80), (4, 64), (16, 20), (48, 64), (16, 512)])
def test_bytes_per_block_is_what_is_allocated(isa: Isa, block_size: int, head_dim: int, dtype: torch.dtype) -> None:
    cache = kernels.allocate_kv_cache(5, block_size, 3, head_dim, dtype, CPU)
    allocated = cache.keys.nbytes + cache.values.nbytes
    assert allocated == 5 * kernels.kv_bytes_per_block(block_size, 3, head_dim, dtype, CPU)


@pytest.mark.parametrize(("block_size", "head_dim", "dtype"), [(4, 64, torch.float32), (16, 20, torch.float32)])
def test_shapes_without_a_native_layout_use_the_reference(
    isa: Isa, block_size: int, head_dim: int, dtype: torch.dtype
) -> None:
    cache = kernels.allocate_kv_cache(5, block_size, 1, head_dim, dtype, CPU)
    assert cache.native is None
    key, value, query = (torch.randn(3, 1, head_dim, dtype=dtype) for _ in range(3))
    slots = torch.tensor([4, 5, 6])
    kernels.write_kv(key, value, cache, slots)
    batch = kernels.AttentionBatch(
        torch.tensor([0, 3], dtype=torch.int32),
        torch.tensor([3], dtype=torch.int32),
        torch.tensor([[4 // block_size, 4 // block_size + 1]], dtype=torch.int32),
        slots,
        3,
        3,
    )
    if block_size == 4:
        got = kernels.paged_attention(query, cache, batch, scale=1.0)
        assert torch.equal(got, reference.paged_attention(query, cache, batch, scale=1.0))


def test_what_a_native_cache_cannot_take_is_refused(isa: Isa) -> None:
    case = ragged(Shape(2, 1, 32), [(5, 1)])
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        kernels.paged_attention(case.query.half(), case.native, case.batch, scale=1.0)
    with pytest.raises(TypeError, match="float32 and bfloat16"):
        kernels.write_kv(torch.zeros(1, 1, 32).half(), torch.zeros(1, 1, 32).half(), case.native, torch.zeros(1).long())
    with pytest.raises(ValueError, match="out must have"):
        kernels.paged_attention(case.query, case.native, case.batch, scale=1.0, out=torch.empty(1, 2, 32).bfloat16())
    with pytest.raises(ValueError, match="out must have"):
        kernels.paged_attention(case.query, case.native, case.batch, scale=1.0, out=torch.empty(1, 1, 32))
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError):  # the reference's: a smaller result is never written past its end
        kernels.rms_norm(x, x[0], 1e-5, torch.empty(1, 8))
    with pytest.raises(RuntimeError):
        kernels.silu_and_mul(x, torch.empty(1, 4))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (64, 16), (80, 80), (40, 20), (256, 64)])
@pytest.mark.parametrize("tokens", [1, 200])
def test_rotary_and_write(
    isa: Isa, threads: None, tokens: int, head_dim: int, rotary_dim: int, interleaved: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(5)
    torch.set_num_threads(2)
    shape = Shape(6, 2, head_dim, 16, dtype)
    native = poisoned_cache(shape, tokens // 16 + 2)
    plain = reference.allocate_kv_cache(native.num_blocks, 16, 2, head_dim, dtype, CPU)
    angles = torch.randn(50, rotary_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.randint(50, (tokens,))
    slots = torch.randperm(native.num_blocks * 16)[:tokens]
    fused = torch.randn(tokens, 10 * head_dim).to(dtype)
    queries = []
    for module, cache in ((kernels, native), (reference, plain)):
        parts = fused.clone().split([6 * head_dim, 2 * head_dim, 2 * head_dim], -1)
        query, key, value = (part.view(tokens, -1, head_dim) for part in parts)
        options = {"rotary_dim": rotary_dim, "interleaved": interleaved}
        module.rotary_and_write_kv(query, key, value, positions, cos_sin, cache, slots, **options)
        queries.append(query)
    assert distance(*queries) < TOLERANCE[dtype] / 2
    # What was written is seen through attention: one sequence a token, whose block it shares with whoever is there.
    batch = kernels.AttentionBatch(
        query_start=torch.arange(2, dtype=torch.int32),
        seq_lens=torch.ones(1, dtype=torch.int32),
        block_table=(slots[:1] // 16).int()[:, None],
        slot_mapping=slots[:1],
        max_query_len=1,
        max_seq_len=1,
    )
    for slot in slots.tolist():
        if slot % 16 == 0:
            batch.block_table[0, 0] = slot // 16
            got = kernels.paged_attention(queries[1][:1], native, batch, scale=0.1)
            want = reference.paged_attention(queries[1][:1], plain, batch, scale=0.1)
            assert distance(got, want) < TOLERANCE[dtype] / 2


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 7, 16, 63, 576, 1000])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_norms(isa: Isa, threads: None, rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    torch.set_num_threads(2)
    x = torch.randn(rows, size + 9).to(dtype)[:, :size]
    weight = torch.randn(size).to(dtype)
    out = torch.full((rows, size), float("nan"), dtype=dtype)
    assert kernels.rms_norm(x, weight, 1e-5, out) is out
    assert distance(out, reference.rms_norm(x, weight, 1e-5)) < TOLERANCE[dtype] / 2
    assert torch.equal(kernels.rms_norm(x, weight, 1e-5), out)
    residual = torch.randn(rows, size).to(dtype)
    native, plain = residual.clone(), residual.clone()
    got = kernels.fused_add_rms_norm(x, native, weight, 1e-5)
    want = reference.fused_add_rms_norm(x, plain, weight, 1e-5)
    assert torch.equal(native, plain)
    assert distance(got, want) < TOLERANCE[dtype] / 2


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 15, 64, 1000])
@pytest.mark.parametrize("rows", [1, 80])
def test_gated_activations(isa: Isa, threads: None, rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    torch.set_num_threads(2)
    x = (torch.randn(rows, 2 * size + 3) * 4).to(dtype)[:, : 2 * size]
    for name, options in (("silu_and_mul", {}), ("gelu_and_mul", {}), ("gelu_and_mul", {"approximate": "tanh"})):
        out = torch.full((rows, size), float("nan"), dtype=dtype)
        assert getattr(kernels, name)(x, out, **options) is out
        # In float64: the reference's 1 + erf and 1 + tanh cancel where the gate is negative.
        want = getattr(reference, name)(x.double(), **options)
        torch.testing.assert_close(out.double(), want, atol=1e-12, rtol=TOLERANCE[dtype])


def test_activations_of_extreme_values(isa: Isa) -> None:
    gate = torch.tensor([[-1e30, -100.0, -88.5, -20.0, -0.0, 20.0, 89.0, 1e30]])
    x = torch.cat((gate, torch.ones(1, 8)), -1)
    torch.testing.assert_close(kernels.silu_and_mul(x), reference.silu_and_mul(x), atol=1e-30, rtol=1e-5)
    want = reference.gelu_and_mul(x, approximate="tanh")
    assert not kernels.gelu_and_mul(x, approximate="tanh").isnan().any()
    torch.testing.assert_close(kernels.gelu_and_mul(x, approximate="tanh")[:, 2:6], want[:, 2:6], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 64, 1023, 1024, 1025, 49152])
@pytest.mark.parametrize("rows", [1, 9])
def test_argmax_takes_the_first_of_equals(isa: Isa, threads: None, rows: int, size: int) -> None:
    torch.manual_seed(8)
    torch.set_num_threads(2)
    x = torch.randint(0, 40, (rows, size + 5)).float()[:, :size]
    peaks, columns = kernels.argmax(x)
    want_peaks, want_columns = reference.argmax(x)
    assert torch.equal(peaks, want_peaks)
    assert torch.equal(columns, want_columns)


def test_argmax_of_nan_and_infinity(isa: Isa) -> None:
    x = torch.zeros(5, 3000)
    x[0, 2000] = float("nan")
    x[1] = float("-inf")
    x[2, 77] = float("inf")
    x[3, 2999] = float("nan")
    x[4] = -1.0
    peaks, columns = kernels.argmax(x)
    assert columns.tolist() == [2000, 0, 77, 2999, 0]
    assert peaks.isnan().tolist() == [True, False, False, True, False]
    assert peaks[[1, 2, 4]].tolist() == [float("-inf"), float("inf"), -1.0]


def test_other_types_and_shapes_go_to_the_reference(isa: Isa) -> None:
    x, weight = torch.randn(2, 3, 8), torch.randn(8)
    assert torch.equal(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert torch.equal(kernels.silu_and_mul(x), reference.silu_and_mul(x))
    half = torch.randn(2, 8).half()
    assert torch.equal(kernels.rms_norm(half, weight.half(), 1e-5), reference.rms_norm(half, weight.half(), 1e-5))


def test_sets_are_validated() -> None:
    with pytest.raises(ValueError, match="not available"):
        kernels.set_cpu_isa(Isa.REFERENCE)


@pytest.mark.parametrize(
    ("name", "said"),
    [("generic", "GENERIC False"), ("reference", "REFERENCE True"), ("sse9", "must be one of reference, generic")],
)
def test_the_environment_forces_a_set(name: str, said: str) -> None:
    script = (
        "import octavo_kernels as k, torch\n"
        "cache = k.allocate_kv_cache(1, 16, 1, 32, torch.float32, torch.device('cpu'))\n"
        "print(k.cpu_isa().name, cache.native is None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OCTAVO_CPU_ISA": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in done.stdout + done.stderr
