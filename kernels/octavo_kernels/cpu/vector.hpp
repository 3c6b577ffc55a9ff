// Vectors of floats as wide as the instruction set a file is compiled for, in the compiler's own vector types.
// Only for `*_simd.cpp`: everything is in the variant's namespace, so that no wide code leaks into a narrow caller.
#pragma once

#include <cmath>
#include <cstring>

#include "types.hpp"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vfloat __attribute__((vector_size(kLanes * 4)));
typedef int32_t vint __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vuint __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vhalf __attribute__((vector_size(kLanes * 2)));

static inline vfloat broadcast(float x) { return vfloat{} + x; }

static inline vfloat load(const float* p) {
    vfloat x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}

static inline vfloat load(const bf16* p) {
    vhalf x;
    __builtin_memcpy(&x, p, sizeof x);
    return (vfloat)(__builtin_convertvector(x, vuint) << 16);
}

static inline void store(float* p, vfloat x) { __builtin_memcpy(p, &x, sizeof x); }

// To the nearest, ties to even; NaN stays NaN.
static inline vhalf round_to_bf16(vfloat x) {
#if defined(__AVX512BF16__)
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
    vhalf half;
    __builtin_memcpy(&half, &rounded, sizeof half);
    return half;
#else
    const vuint bits = (vuint)x;
    const vuint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return __builtin_convertvector((x == x) ? rounded : (bits >> 16) | 0x40u, vhalf);
#endif
}

static inline void store(bf16* p, vfloat x) {
    const vhalf rounded = round_to_bf16(x);
    __builtin_memcpy(p, &rounded, sizeof rounded);
}

static inline float widen(float x) { return x; }

static inline float widen(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float y;
    __builtin_memcpy(&y, &bits, sizeof y);
    return y;
}

static inline void narrow(float x, float& y) { y = x; }

static inline void narrow(float x, bf16& y) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    y.bits = uint16_t(x == x ? rounded : (bits >> 16) | 0x40u);
}

// What is left of x once it has been stored as a T.
template <typename T>
static inline vfloat rounded_to(vfloat x);
template <>
inline vfloat rounded_to<float>(vfloat x) {
    return x;
}
template <>
inline vfloat rounded_to<bf16>(vfloat x) {
    return (vfloat)(__builtin_convertvector(round_to_bf16(x), vuint) << 16);
}

// Stores x and returns what was stored.
static inline vfloat store_rounded(float* p, vfloat x) {
    store(p, x);
    return x;
}

static inline vfloat store_rounded(bf16* p, vfloat x) {
    const vhalf rounded = round_to_bf16(x);
    __builtin_memcpy(p, &rounded, sizeof rounded);
    return (vfloat)(__builtin_convertvector(rounded, vuint) << 16);
}

// The first `count` < kLanes elements; the other lanes are zero.
template <typename T>
static inline vfloat load_part(const T* p, int count) {
    T part[kLanes] = {};
    __builtin_memcpy(part, p, count * sizeof(T));
    return load(part);
}

template <typename T>
static inline void store_part(T* p, vfloat x, int count) {
    T part[kLanes];
    store(part, x);
    __builtin_memcpy(p, part, count * sizeof(T));
}

static inline vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }

static inline float sum(vfloat x) {
    float lanes[kLanes];
    store(lanes, x);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

static inline float largest(vfloat x) {
    float lanes[kLanes];
    store(lanes, x);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

// e^x to about 1e-7 of its value; 0 below -87. x at most 88.
static inline vfloat exponential(vfloat x) {
    constexpr float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    const vfloat clamped = larger(x, broadcast(-87.f));
    const vfloat shifted = clamped * 1.44269504f + magic;
    const vfloat n = shifted - magic;
    vfloat r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vfloat p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    const vfloat scaled = (vfloat)((vuint)p + ((vuint)shifted << 23));
    return x < broadcast(-87.f) ? vfloat{} : scaled;
}

// tanh to about 3e-7 of its value: a series near zero, where the quotient would cancel.
static inline vfloat hyperbolic_tangent(vfloat x) {
    const vfloat size = x < vfloat{} ? -x : x;
    const vfloat bounded = size > broadcast(20.f) ? broadcast(20.f) : size;
    const vfloat far = 1.f - 2.f / (exponential(2.f * bounded) + 1.f);
    const vfloat s = x * x;
    const vfloat near =
        size + size * s *
                   (-0.333333333f + s * (0.133333333f + s * (-0.0539682540f + s * (0.0218694885f - s * 0.00886323553f))));
    const vfloat positive = size < broadcast(0.35f) ? near : far;
    return x < vfloat{} ? -positive : positive;
}

static inline vfloat sigmoid(vfloat x) {
    const vfloat e = exponential(x < vfloat{} ? x : -x);
    const vfloat below = e / (1.f + e);
    return x < vfloat{} ? below : 1.f / (1.f + e);
}

}  // namespace octavo::OCTAVO_ISA
