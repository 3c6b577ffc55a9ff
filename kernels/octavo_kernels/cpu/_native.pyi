"""Types of the C++ extension, module.cpp. Addresses are `Tensor.data_ptr()`, 0 for none; strides count elements."""

class Cache:
    def __init__(
        self,
        keys: int,
        values: int,
        type: int,
        layout: int,
        kv_heads: int,
        head_dim: int,
        key_dim: int,
        value_dim: int,
        block_size: int,
        /,
    ) -> None: ...

def best_isa() -> int: ...
def active_isa() -> int: ...
def set_active_isa(isa: int, /) -> None: ...
def has_vnni() -> bool: ...
def rms_norm(
    x: int,
    residual: int,
    weight: int,
    out: int,
    type: int,
    rows: int,
    size: int,
    x_stride: int,
    residual_stride: int,
    out_stride: int,
    epsilon: float,
    /,
) -> None: ...
def gate(
    x: int, out: int, type: int, activation: int, rows: int, size: int, x_stride: int, out_stride: int, /
) -> None: ...
def argmax(x: int, columns: int, peaks: int, rows: int, size: int, x_stride: int, /) -> None: ...
def rotary_and_write(
    cache: Cache,
    query: int,
    key: int,
    value: int,
    type: int,
    tokens: int,
    query_stride: int,
    key_stride: int,
    value_stride: int,
    heads: int,
    positions: int,
    cos_sin: int,
    rotary_dim: int,
    interleaved: bool,
    slots: int,
    /,
) -> None: ...
def paged_attention(
    cache: Cache,
    query: int,
    out: int,
    type: int,
    query_stride: int,
    out_stride: int,
    query_start: int,
    seq_lens: int,
    block_table: int,
    table_stride: int,
    sequences: int,
    heads: int,
    scale: float,
    window: int,
    soft_cap: float,
    alibi_slopes: int,
    /,
) -> None: ...
def packed_size(outputs: int, inputs: int, /) -> int: ...
def pack_weight(data: int, outputs: int, inputs: int, weight: int, row_stride: int, gated: bool, /) -> None: ...
def unpack_rows(data: int, outputs: int, inputs: int, ids: int, count: int, out: int, /) -> None: ...
def multiply(
    data: int,
    outputs: int,
    inputs: int,
    x: int,
    x_stride: int,
    rows: int,
    out: int,
    out_stride: int,
    bias: int,
    epilogue: int,
    /,
) -> None: ...
