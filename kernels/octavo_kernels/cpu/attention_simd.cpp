// Attention over a plain cache in float32 arithmetic, and the merging of chunks for all layouts.
#include "attention.hpp"
#include "vector.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int kUnit = 16;  // keys that scores are computed for at once; blocks hold a multiple
constexpr int kUnitVectors = kUnit / kLanes;
constexpr int kScoreStride = kChunk + 16;

inline int smaller(int a, int b) { return a < b ? a : b; }
inline int bigger(int a, int b) { return a > b ? a : b; }

struct Scratch {
    float* queries;  // [kMaxRows][head_dim], scaled
    float* scores;   // [kMaxRows][kScoreStride]

    Scratch(const Attention& a, char* memory)
        : queries(reinterpret_cast<float*>(memory)), scores(queries + int64_t(kMaxRows) * a.cache.key_dim) {}
};

template <typename T>
void prepare_typed(const Attention& a, const Item& item, float* queries) {
    const int dim = a.cache.head_dim, group = a.group();
    for (int row = item.row_begin; row < item.row_end; row++) {
        const T* query = static_cast<const T*>(a.query) +
                         (a.query_start[item.sequence] + row / group) * a.query_stride +
                         int64_t(item.kv_head * group + row % group) * dim;
        float* place = queries + int64_t(row - item.row_begin) * a.cache.key_dim;
        for (int d = 0; d < dim; d++) place[d] = widen(query[d]) * a.scale;
    }
}

// Scores of R rows over 16 keys.
template <int R, typename C>
inline void score_unit(const float* queries, int key_dim, const C* keys, int block_size, int head_dim, float* scores) {
    vfloat total[R][kUnitVectors] = {};
    for (int d = 0; d < head_dim; d++) {
        vfloat key[kUnitVectors];
        for (int j = 0; j < kUnitVectors; j++) key[j] = load(keys + int64_t(d) * block_size + j * kLanes);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < kUnitVectors; j++) total[r][j] += queries[r * key_dim + d] * key[j];
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < kUnitVectors; j++) store(scores + r * kScoreStride + j * kLanes, total[r][j]);
}

template <typename C>
void score_rows(const Attention& a, int rows, const float* queries, const C* keys, float* scores) {
    constexpr int step = kLanes == 16 ? 8 : kLanes == 8 ? 4 : 2;
    const Cache& c = a.cache;
    int row = 0;
    for (; row + step <= rows; row += step)
        score_unit<step>(queries + int64_t(row) * c.key_dim, c.key_dim, keys, c.block_size, c.head_dim,
                         scores + row * kScoreStride);
    for (; step > 3 && row + 3 <= rows; row += 3)
        score_unit<3>(queries + int64_t(row) * c.key_dim, c.key_dim, keys, c.block_size, c.head_dim,
                      scores + row * kScoreStride);
    for (; row < rows; row++)
        score_unit<1>(queries + int64_t(row) * c.key_dim, c.key_dim, keys, c.block_size, c.head_dim,
                      scores + row * kScoreStride);
}

// What R rows make of V vectors of the values, over keys [begin, end) of one block.
template <int R, int V, typename C>
inline void mix_block(const float* weights, const C* values, int value_dim, int begin, int end, float* mixed,
                      int stride) {
    vfloat total[R][V];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) total[r][j] = load(mixed + r * stride + j * kLanes);
    for (int slot = begin; slot < end; slot++) {
        vfloat value[V];
        for (int j = 0; j < V; j++) value[j] = load(values + int64_t(slot) * value_dim + j * kLanes);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < V; j++) total[r][j] += weights[r * kScoreStride + slot] * value[j];
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) store(mixed + r * stride + j * kLanes, total[r][j]);
}

template <int R, typename C>
void mix_dims(const Cache& c, const float* weights, const C* values, int begin, int end, float* mixed, int stride) {
    constexpr int wide = kLanes == 16 ? 4 : 2;
    int d = 0;
    for (; d + wide * kLanes <= c.value_dim; d += wide * kLanes)
        mix_block<R, wide>(weights, values + d, c.value_dim, begin, end, mixed + d, stride);
    for (; d < c.value_dim; d += kLanes)
        mix_block<R, 1>(weights, values + d, c.value_dim, begin, end, mixed + d, stride);
}

template <typename C>
void mix_rows(const Cache& c, int rows, const float* weights, const C* values, int begin, int end, float* mixed,
              int stride) {
    constexpr int step = kLanes == 4 ? 2 : 4;
    int row = 0;
    for (; row + step <= rows; row += step)
        mix_dims<step>(c, weights + row * kScoreStride, values, begin, end, mixed + row * stride, stride);
    for (; step > 3 && row + 3 <= rows; row += 3)
        mix_dims<3>(c, weights + row * kScoreStride, values, begin, end, mixed + row * stride, stride);
    for (; row < rows; row++)
        mix_dims<1>(c, weights + row * kScoreStride, values, begin, end, mixed + row * stride, stride);
}

// Turns a row's scores [0, width) of the chunk from key `start` into weights; those outside [begin, end) become 0.
void weigh(const Attention& a, float* scores, int width, int start, int begin, int end, int position, float slope,
           float& peak, float& total) {
    vint lanes;
    for (int i = 0; i < kLanes; i++) lanes[i] = i + start;
    vfloat best = broadcast(-INFINITY);
    for (int i = 0; i < width; i += kLanes) {
        vfloat x = load(scores + i);
        const vint key = lanes + i;
        if (a.soft_cap != 0.f) x = a.soft_cap * hyperbolic_tangent(x / a.soft_cap);
        if (slope != 0.f) x += slope * __builtin_convertvector(key - position, vfloat);
        x = (key >= begin) & (key < end) ? x : broadcast(-INFINITY);
        store(scores + i, x);
        best = larger(x, best);
    }
    peak = largest(best);
    vfloat weights{};
    if (peak == -INFINITY) {
        for (int i = 0; i < width; i += kLanes) store(scores + i, weights);
    } else {
        for (int i = 0; i < width; i += kLanes) {
            const vfloat x = exponential(load(scores + i) - peak);
            store(scores + i, x);
            weights += x;
        }
    }
    total = sum(weights);
}

template <typename C>
void attend_typed(const Attention& a, const Item& item, int chunk, char* memory, const Softmax& out) {
    const Scratch scratch(a, memory);
    const Cache& c = a.cache;
    const ItemView view(a, item);
    const int group = a.group(), rows = item.rows(), start = chunk * kChunk;
    const int limit = smaller(start + kChunk, view.end(item.row_end - 1, group));
    const int from = bigger(start, view.begin(item.row_begin, group, a.window)) / kUnit * kUnit;
    const C* keys = static_cast<const C*>(c.keys);
    const C* values = static_cast<const C*>(c.values);
    for (int key = from; key < limit; key += kUnit) {
        const int64_t block = int64_t(view.table[key / c.block_size]) * c.kv_heads + item.kv_head;
        score_rows(a, rows, scratch.queries, keys + block * c.key_block() + key % c.block_size,
                   scratch.scores + (key - start));
    }
    const int width = (limit - from + kUnit - 1) / kUnit * kUnit;
    for (int r = 0; r < rows; r++) {
        const int row = item.row_begin + r, end = view.end(row, group);
        const float slope = a.alibi_slopes ? a.alibi_slopes[item.kv_head * group + row % group] : 0.f;
        weigh(a, scratch.scores + r * kScoreStride + (from - start), width, from, view.begin(row, group, a.window), end,
              end - 1, slope, out.peak[r], out.total[r]);
        for (int d = 0; d < c.value_dim; d += kLanes) store(out.mixed + int64_t(r) * out.stride + d, vfloat{});
    }
    for (int key = from; key < limit;) {
        const int block_start = key / c.block_size * c.block_size;
        const int stop = smaller(limit, block_start + c.block_size);
        const int64_t block = int64_t(view.table[key / c.block_size]) * c.kv_heads + item.kv_head;
        mix_rows(c, rows, scratch.scores + (block_start - start), values + block * c.value_block(), key - block_start,
                 stop - block_start, out.mixed, out.stride);
        key = stop;
    }
}

template <typename T>
void write_typed(const Attention& a, const Item& item, const Softmax& from) {
    const int dim = a.cache.head_dim, group = a.group();
    for (int row = item.row_begin; row < item.row_end; row++) {
        T* out = static_cast<T*>(a.out) + (a.query_start[item.sequence] + row / group) * a.out_stride +
                 int64_t(item.kv_head * group + row % group) * dim;
        const int r = row - item.row_begin;
        const float* mixed = from.mixed + int64_t(r) * from.stride;
        const float inverse = 1.f / from.total[r];
        for (int d = 0; d < dim; d++) narrow(mixed[d] * inverse, out[d]);
    }
}

}  // namespace

int64_t chunk_scratch(const Attention& a) { return int64_t(kMaxRows) * (a.cache.key_dim + kScoreStride) * 4; }

void prepare_rows(const Attention& a, const Item& item, char* scratch) {
    float* queries = Scratch(a, scratch).queries;
    a.type == Type::f32 ? prepare_typed<float>(a, item, queries) : prepare_typed<bf16>(a, item, queries);
}

void attend_chunk(const Attention& a, const Item& item, int chunk, char* scratch, const Softmax& out, const Item*) {
    a.cache.type == Type::f32 ? attend_typed<float>(a, item, chunk, scratch, out)
                              : attend_typed<bf16>(a, item, chunk, scratch, out);
}

void merge(const Softmax& into, const Softmax& from, int rows, int size, bool first) {
    for (int r = 0; r < rows; r++) {
        float* mixed = into.mixed + int64_t(r) * into.stride;
        const float* other = from.mixed + int64_t(r) * from.stride;
        if (first) {
            into.peak[r] = from.peak[r];
            into.total[r] = from.total[r];
            std::memcpy(mixed, other, size * sizeof(float));
            continue;
        }
        if (from.peak[r] == -INFINITY) continue;
        const float peak = into.peak[r] > from.peak[r] ? into.peak[r] : from.peak[r];
        const vfloat scales = exponential(vfloat{into.peak[r], from.peak[r]} - peak);
        const float kept = scales[0], added = scales[1];
        into.total[r] = into.total[r] * kept + from.total[r] * added;
        into.peak[r] = peak;
        for (int d = 0; d < size; d += kLanes)
            store(mixed + d, load(mixed + d) * kept + load(other + d) * added);
    }
}

void write_rows(const Attention& a, const Item& item, const Softmax& from) {
    a.type == Type::f32 ? write_typed<float>(a, item, from) : write_typed<bf16>(a, item, from);
}

}  // namespace octavo::OCTAVO_ISA
