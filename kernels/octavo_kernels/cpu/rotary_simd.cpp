// Rotary embedding of queries and keys (Su et al., 2021), and keys and values on their way into the cache.
#include "elementwise.hpp"
#include "vector.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int64_t kParallel = 1 << 13;

template <typename T>
void widen_head(const T* __restrict x, float* __restrict y, int count) {
    for (int i = 0; i < count; i++) y[i] = widen(x[i]);
}

template <typename T>
void narrow_head(const float* __restrict x, T* __restrict y, int count) {
    for (int i = 0; i < count; i++) narrow(x[i], y[i]);
}

// Rotates the first rotary_dim of a head, in float32.
void rotate(float* __restrict head, const float* __restrict cosine, const float* __restrict sine, int rotary_dim,
            bool interleaved) {
    const int half = rotary_dim / 2;
    if (interleaved) {
        for (int i = 0; i < half; i++) {
            const float first = head[2 * i], second = head[2 * i + 1];
            head[2 * i] = first * cosine[i] - second * sine[i];
            head[2 * i + 1] = second * cosine[i] + first * sine[i];
        }
        return;
    }
    float* __restrict upper = head + half;
    for (int i = 0; i < half; i++) {
        const float first = head[i], second = upper[i];
        head[i] = first * cosine[i] - second * sine[i];
        upper[i] = second * cosine[i] + first * sine[i];
    }
}

template <typename C>
struct Writer {
    const Cache& cache;
    C* keys;
    C* values;
    int slot;

    Writer(const Cache& c, int64_t place, int head) : cache(c), slot(int(place % c.block_size)) {
        const int64_t block = place / c.block_size * c.kv_heads + head;
        keys = static_cast<C*>(c.keys) + block * c.key_block();
        values = static_cast<C*>(c.values) + block * c.value_block();
    }

    void put_key(const C* head) {
        if (cache.layout == Layout::plain) {
            for (int d = 0; d < cache.head_dim; d++) keys[int64_t(d) * cache.block_size + slot] = head[d];
            return;
        }
        for (int d = 0; d < cache.key_dim; d += 2)
            std::memcpy(keys + int64_t(d) * cache.block_size + 2 * slot, head + d, 2 * sizeof(C));
    }

    void put_value(const C* head) {
        if (cache.layout == Layout::plain) {
            std::memcpy(values + int64_t(slot) * cache.value_dim, head, cache.head_dim * sizeof(C));
            return;
        }
        C* pair = values + int64_t(slot / 2) * 2 * cache.value_dim + slot % 2;
        for (int d = 0; d < cache.head_dim; d++) pair[2 * d] = head[d];
    }
};

template <typename T, typename C>
void token(const Rotary& a, const Cache& cache, int64_t index) {
    float wide[kMaxHeadDim];
    C stored[kMaxHeadDim];
    T rounded[kMaxHeadDim];
    const int dim = cache.head_dim;
    for (int d = dim; d < cache.key_dim; d++) narrow(0.f, stored[d]);
    const float* cosine = a.cos_sin ? a.cos_sin + a.positions[index] * a.rotary_dim : nullptr;
    const float* sine = a.cos_sin ? cosine + a.rotary_dim / 2 : nullptr;
    if (a.cos_sin) {
        for (int head = 0; head < a.heads; head++) {
            T* query = static_cast<T*>(a.query) + index * a.query_stride + int64_t(head) * dim;
            widen_head(query, wide, a.rotary_dim);
            rotate(wide, cosine, sine, a.rotary_dim, a.interleaved);
            narrow_head(wide, query, a.rotary_dim);
        }
    }
    for (int head = 0; head < cache.kv_heads; head++) {
        Writer<C> writer(cache, a.slots[index], head);
        widen_head(static_cast<const T*>(a.key) + index * a.key_stride + int64_t(head) * dim, wide, dim);
        if (a.cos_sin) {
            rotate(wide, cosine, sine, a.rotary_dim, a.interleaved);
            narrow_head(wide, rounded, dim);  // as the reference, which rounds to the model's type in between
            widen_head(rounded, wide, dim);
        }
        narrow_head(wide, stored, dim);
        writer.put_key(stored);
        widen_head(static_cast<const T*>(a.value) + index * a.value_stride + int64_t(head) * dim, wide, dim);
        narrow_head(wide, stored, dim);
        writer.put_value(stored);
    }
}

template <typename T, typename C>
void tokens(const Rotary& a, const Cache& cache) {
    const int64_t work = a.tokens * (a.heads + 2 * cache.kv_heads) * cache.head_dim;
#pragma omp parallel for schedule(static) if (a.tokens > 1 && work > kParallel)
    for (int64_t index = 0; index < a.tokens; index++) token<T, C>(a, cache, index);
}

}  // namespace

void rotary_and_write(const Rotary& a, const Cache& cache) {
    if (a.type == Type::f32)
        cache.type == Type::f32 ? tokens<float, float>(a, cache) : tokens<float, bf16>(a, cache);
    else
        cache.type == Type::f32 ? tokens<bf16, float>(a, cache) : tokens<bf16, bf16>(a, cache);
}

}  // namespace octavo::OCTAVO_ISA
