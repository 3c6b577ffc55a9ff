// Row-wise kernels between the matrix products. Rows are contiguous; strides count elements.
#pragma once

#include "cache.hpp"
#include "dispatch.hpp"

namespace octavo {

struct Norm {
    const void* x;
    void* residual;  // null, or x is added to it first and its norm is taken
    const void* weight;
    void* out;
    Type type;
    int64_t rows, size, x_stride, residual_stride, out_stride;
    float epsilon;
};

enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2 };

struct Gate {
    const void* x;  // [rows, gate | up]
    void* out;
    Type type;
    Activation activation;
    int64_t rows, size, x_stride, out_stride;
};

// The first of each row's largest values; a NaN counts as largest.
struct Argmax {
    const float* x;
    int64_t* columns;
    float* peaks;
    int64_t rows, size, x_stride;
};

struct Rotary {
    void* query;
    void* key;
    const void* value;
    Type type;
    int64_t tokens, query_stride, key_stride, value_stride;
    int heads;
    const int64_t* positions;
    const float* cos_sin;  // null: no rotation
    int rotary_dim;
    bool interleaved;
    const int64_t* slots;
};

OCTAVO_FOR_EACH_ISA(void rms_norm(const Norm&); void gate(const Gate&); void argmax(const Argmax&);
                    void rotary_and_write(const Rotary&, const Cache&);)

}  // namespace octavo
