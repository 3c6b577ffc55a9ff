// RMSNorm with the residual's addition, gated activations, argmax. Rounds where the reference rounds.
#include "elementwise.hpp"

#include "vector.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kParallel = 1 << 13;

template <typename T>
void norm_row(const Norm& a, int64_t row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* residual = a.residual ? static_cast<T*>(a.residual) + row * a.residual_stride : nullptr;
    const T* weight = static_cast<const T*>(a.weight);
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    const int64_t whole = a.size / kLanes * kLanes;
    const int rest = int(a.size - whole);
    vfloat squares{}, others{};
    int64_t i = 0;
    for (; i + 2 * kLanes <= whole; i += 2 * kLanes) {
        vfloat v = load(x + i), w = load(x + i + kLanes);
        if (residual) {
            v = store_rounded(residual + i, v + load(residual + i));
            w = store_rounded(residual + i + kLanes, w + load(residual + i + kLanes));
        }
        squares += v * v;
        others += w * w;
    }
    for (; i < whole; i += kLanes) {
        vfloat v = load(x + i);
        if (residual) v = store_rounded(residual + i, v + load(residual + i));
        squares += v * v;
    }
    squares += others;
    if (rest) {
        vfloat v = load_part(x + whole, rest);
        if (residual) {
            v = rounded_to<T>(v + load_part(residual + whole, rest));
            store_part(residual + whole, v, rest);
        }
        squares += v * v;
    }
    const float inverse = 1.f / std::sqrt(sum(squares) / float(a.size) + a.epsilon);
    const T* source = residual ? residual : x;
    for (i = 0; i < whole; i += kLanes)
        store(out + i, rounded_to<T>(load(source + i) * inverse) * load(weight + i));
    if (rest) {
        const vfloat normed = rounded_to<T>(load_part(source + whole, rest) * inverse);
        store_part(out + whole, normed * load_part(weight + whole, rest), rest);
    }
}

template <typename T>
void norm_rows(const Norm& a) {
#pragma omp parallel if (a.rows > 1 && a.rows * a.size > kParallel)
    {
        const FlushDenormals guard;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < a.rows; row++) norm_row<T>(a, row);
    }
}

inline vfloat gaussian(vfloat x) {
    float lanes[kLanes];
    store(lanes, x);
    for (float& lane : lanes) lane *= 0.5f * std::erfc(-0.70710678f * lane);
    return load(lanes);
}

template <Activation A>
inline vfloat activate(vfloat x) {
    if constexpr (A == Activation::silu) return x * sigmoid(x);
    if constexpr (A == Activation::gelu) return gaussian(x);
    // (1 + tanh u) / 2 is sigmoid(2 u), and does not cancel.
    if constexpr (A == Activation::gelu_tanh) return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
}

template <typename T, Activation A>
void gate_row(const Gate& a, int64_t row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* up = x + a.size;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    const int64_t whole = a.size / kLanes * kLanes;
    const int rest = int(a.size - whole);
    for (int64_t i = 0; i < whole; i += kLanes) store(out + i, rounded_to<T>(activate<A>(load(x + i))) * load(up + i));
    if (rest) {
        const vfloat activated = rounded_to<T>(activate<A>(load_part(x + whole, rest)));
        store_part(out + whole, activated * load_part(up + whole, rest), rest);
    }
}

template <typename T, Activation A>
void gate_rows(const Gate& a) {
#pragma omp parallel if (a.rows > 1 && a.rows * a.size > kParallel)
    {
        const FlushDenormals guard;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < a.rows; row++) gate_row<T, A>(a, row);
    }
}

template <typename T>
void gate_typed(const Gate& a) {
    switch (a.activation) {
        case Activation::silu: return gate_rows<T, Activation::silu>(a);
        case Activation::gelu: return gate_rows<T, Activation::gelu>(a);
        case Activation::gelu_tanh: return gate_rows<T, Activation::gelu_tanh>(a);
    }
}

// The largest of a stretch, and whether it holds a NaN.
struct Peak {
    float value;
    bool nan;
};

inline Peak peak_of(const float* x, int64_t size) {
    const int64_t whole = size / (4 * kLanes) * (4 * kLanes);
    vfloat best[4];
    vint odd{};
    for (vfloat& lane : best) lane = broadcast(-INFINITY);
    for (int64_t i = 0; i < whole; i += 4 * kLanes)
        for (int j = 0; j < 4; j++) {
            const vfloat v = load(x + i + j * kLanes);
            best[j] = larger(v, best[j]);
            odd |= v != v;
        }
    Peak peak{largest(larger(larger(best[0], best[1]), larger(best[2], best[3]))), false};
    for (int lane = 0; lane < kLanes; lane++) peak.nan |= odd[lane] != 0;
    for (int64_t i = whole; i < size; i++) {
        peak.value = x[i] > peak.value ? x[i] : peak.value;
        peak.nan |= x[i] != x[i];
    }
    return peak;
}

void argmax_row(const Argmax& a, int64_t row) {
    constexpr int64_t stretch = 1024;
    const float* x = a.x + row * a.x_stride;
    float best = -INFINITY;
    int64_t from = 0;
    bool nan = false;
    for (int64_t start = 0; start < a.size; start += stretch) {
        const Peak peak = peak_of(x + start, a.size - start < stretch ? a.size - start : stretch);
        nan |= peak.nan;
        if (peak.value > best) {
            best = peak.value;
            from = start;
        }
    }
    int64_t column = nan ? 0 : from;
    if (nan)
        while (x[column] == x[column]) column++;
    else
        while (x[column] != best) column++;
    a.columns[row] = column;
    a.peaks[row] = x[column];
}

}  // namespace

void rms_norm(const Norm& a) { a.type == Type::f32 ? norm_rows<float>(a) : norm_rows<bf16>(a); }

void gate(const Gate& a) { a.type == Type::f32 ? gate_typed<float>(a) : gate_typed<bf16>(a); }

void argmax(const Argmax& a) {
#pragma omp parallel for schedule(static) if (a.rows > 1 && a.rows * a.size > kParallel)
    for (int64_t row = 0; row < a.rows; row++) argmax_row(a, row);
}

}  // namespace octavo::OCTAVO_ISA
