// Products with a weight that was packed once: y [M, N] = x [M, K] W^T, in bfloat16 with float32 sums.
#pragma once

#include <cstdint>

#include "types.hpp"

namespace octavo {

// A packed weight is panels of 32 output columns. A panel is K / 32 steps, a step two tiles (columns 0-15, 16-31) of 16
// rows of 16 pairs: pair (row, column) holds the weights of inputs 2 row and 2 row + 1. Short panels and steps are filled
// up with zeros.
constexpr int kPanelColumns = 32;
constexpr int kStepInputs = 32;

struct PackedWeight {
    bf16* data;  // 64-byte aligned, packed_size(outputs, inputs) elements
    int64_t outputs;
    int64_t inputs;

    int64_t panels() const { return (outputs + kPanelColumns - 1) / kPanelColumns; }
    int64_t steps() const { return (inputs + kStepInputs - 1) / kStepInputs; }
    int64_t panel_size() const { return steps() * kPanelColumns * kStepInputs; }
};

int64_t packed_size(int64_t outputs, int64_t inputs);

// Packs rows of a row-major weight, `row_stride` elements apart. Output column o of the result is row order(o): itself,
// or, where the weight is a gate above an up projection of equal size, 16 rows of the one and 16 of the other by turns.
void pack_weight(const PackedWeight& packed, const bf16* weight, int64_t row_stride, bool gated);

// Rows `ids` of the weight that was packed (not gated), to out [count, inputs].
void unpack_rows(const PackedWeight& packed, const int64_t* ids, int64_t count, bf16* out);

// What happens to the sums: rounded; gated and rounded (packed as such); or as they are.
enum class Epilogue : int { store = 0, silu = 1, gelu_tanh = 2, store_f32 = 3 };

struct Product {
    const bf16* x;  // [rows, inputs]
    int64_t x_stride;
    int64_t rows;
    void* out;  // bfloat16 [rows, outputs], [rows, outputs / 2] if gated, or float32 [rows, outputs]
    int64_t out_stride;
    const bf16* bias;  // [outputs], in the weight's own order, or null
    Epilogue epilogue;
};

// Needs Isa::amx.
void multiply_amx(const PackedWeight& weight, const Product& product);

}  // namespace octavo
