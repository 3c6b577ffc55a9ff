// Attention with AMX tiles: scores and weighted values are bfloat16 products accumulated in float32; the softmax between
// them is float32, and its weights are rounded to bfloat16.
#include "attention_amx.hpp"

#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "tiles.hpp"

namespace octavo::tiles {
namespace {

constexpr int kScoreStride = kChunk + 16;   // floats; off the powers of two that would share cache sets
constexpr int kWeightStride = kChunk + 32;  // bfloat16
constexpr int kTile = 16 * 32;              // bfloat16 in a full tile
constexpr int kFewRows = 16;                // up to here memory is the bound, and what comes next is prefetched
constexpr float kLog2E = 1.44269504f;

thread_local int configured = 0;

// Tiles 0 to 3 accumulate, `rows` high; 4 and up hold operands, `depth` bfloat16 deep.
void configure(int rows, int depth, bool two_row_tiles) {
    const int wanted = rows | depth << 8 | two_row_tiles << 16;
    if (configured == wanted) return;
    configured = wanted;
    TileConfig config;
    const int first_right = two_row_tiles ? 6 : 5;
    for (int tile = 0; tile < 8; tile++) {
        const bool right = tile >= first_right;
        config.rows[tile] = uint8_t(right ? depth / 2 : rows);
        config.row_bytes[tile] = uint16_t(tile < 4 || right ? 64 : 2 * depth);
    }
    load_config(config);
}

struct Scratch {
    bf16* queries;  // [row tile][key_dim / 32][16][32]
    float* scores;  // [kMaxRows][kScoreStride]
    bf16* weights;  // [kMaxRows][kWeightStride]
    bf16* tail;     // [depth / 2][value_dim][2], the last values with zeros behind them

    Scratch(const Attention& a, char* memory)
        : queries(reinterpret_cast<bf16*>(memory)),
          scores(reinterpret_cast<float*>(queries + int64_t(kMaxRows) * a.cache.key_dim)),
          weights(reinterpret_cast<bf16*>(scores + int64_t(kMaxRows) * kScoreStride)),
          tail(weights + int64_t(kMaxRows) * kWeightStride) {}
};

int64_t scratch_bytes(const Attention& a) {
    return int64_t(kMaxRows) * (a.cache.key_dim * 2 + kScoreStride * 4 + kWeightStride * 2) + 32 * a.cache.value_dim * 2;
}

int smaller(int a, int b) { return a < b ? a : b; }
int larger(int a, int b) { return a > b ? a : b; }

// Column tile J of N, for R row tiles: loads it and multiplies all row tiles by it.
template <int R, int N, int J>
inline void column(const bf16* right, int64_t stride) {
    if constexpr (J < N) {
        constexpr int tile = R == 2 ? 6 + J % 2 : 5 + J % 3;
        tile_load<tile>(right, stride);
        tile_product<J, 4, tile>();
        if constexpr (R == 2) tile_product<N + J, 5, tile>();
    }
}

template <int R, int N>
inline void zero_tiles() {
    tile_zero<0>();
    if constexpr (R * N > 1) tile_zero<1>();
    if constexpr (R * N > 2) tile_zero<2>();
    if constexpr (R * N > 3) tile_zero<3>();
}

// Stores R x N accumulators, 16 floats apart and 16 rows apart.
template <int R, int N>
inline void store_tiles(float* out, int stride) {
    const int64_t bytes = int64_t(stride) * 4;
    tile_store<0>(out, bytes);
    if constexpr (N > 1) tile_store<1>(out + 16, bytes);
    if constexpr (N > 2) tile_store<2>(out + 32, bytes);
    if constexpr (N > 3) tile_store<3>(out + 48, bytes);
    if constexpr (R == 2) {
        tile_store<N>(out + 16 * stride, bytes);
        if constexpr (N > 1) tile_store<N + 1>(out + 16 * stride + 16, bytes);
    }
}

inline void prefetch(const bf16* memory, int64_t count) {
    for (int64_t i = 0; i < count; i += 32) _mm_prefetch(reinterpret_cast<const char*>(memory + i), _MM_HINT_T0);
}

// One chunk of an item: its keys' addresses, and the range that is computed.
struct Chunk {
    const Attention& a;
    const Item& item;
    const ItemView view;
    int start, from, limit;  // keys: the chunk's first, the first computed, the one after the last
    int depth;               // keys in one tile of values

    Chunk(const Attention& attention, const Item& it, int chunk)
        : a(attention), item(it), view(attention, it), start(chunk * kChunk) {
        const int group = a.group();
        depth = smaller(32, a.cache.block_size);
        limit = smaller(start + kChunk, view.end(item.row_end - 1, group));
        from = larger(start, view.begin(item.row_begin, group, a.window)) / depth * depth;
    }

    int width() const { return (limit - from + depth - 1) / depth * depth; }

    const bf16* keys(int key) const {
        const Cache& c = a.cache;
        const int64_t block = int64_t(view.table[key / c.block_size]) * c.kv_heads + item.kv_head;
        return static_cast<const bf16*>(c.keys) + block * c.key_block() + key % c.block_size * 2;
    }

    const bf16* values(int key) const {
        const Cache& c = a.cache;
        const int64_t block = int64_t(view.table[key / c.block_size]) * c.kv_heads + item.kv_head;
        return static_cast<const bf16*>(c.values) + block * c.value_block() + int64_t(key % c.block_size) * c.value_dim;
    }
};

// Scores of R row tiles over N columns of 16 keys.
template <int R, int N>
void score(const Cache& c, const bf16* queries, const bf16* const* keys, float* scores) {
    const int steps = c.key_dim / 32;
    const int64_t stride = int64_t(c.block_size) * 4;
    zero_tiles<R, N>();
    for (int step = 0; step < steps; step++) {
        tile_load<4>(queries + step * kTile, 64);
        if constexpr (R == 2) tile_load<5>(queries + (steps + step) * kTile, 64);
        const int64_t offset = int64_t(step) * 32 * c.block_size;
        column<R, N, 0>(keys[0] + offset, stride);
        if constexpr (N > 1) column<R, N, 1>(keys[1] + offset, stride);
        if constexpr (N > 2) column<R, N, 2>(keys[2] + offset, stride);
        if constexpr (N > 3) column<R, N, 3>(keys[3] + offset, stride);
    }
    store_tiles<R, N>(scores, kScoreStride);
}

template <int R>
void score_chunk(const Chunk& chunk, const bf16* queries, const bf16* const* keys, int columns, float* scores,
                 bool fetch_values) {
    constexpr int wide = R == 2 ? 2 : 4;
    const Cache& c = chunk.a.cache;
    int column = 0;
    for (; column + wide <= columns; column += wide) {
        // The first lines of the values: the processor's own prefetching goes on from there, and does better alone.
        if (fetch_values)
            for (int key = 0; key < wide * 16; key += chunk.depth)
                prefetch(chunk.values(chunk.from + column * 16 + key), 64);
        score<R, wide>(c, queries, keys + column, scores + column * 16);
    }
    for (; column < columns; column++) score<R, 1>(c, queries, keys + column, scores + column * 16);
}

// The keys of what the thread computes next, fetched while the values of this chunk are multiplied.
struct Coming {
    const bf16* blocks[kChunk / 16];
    int count = 0, taken = 0;
    int64_t size = 0;

    void add(const Attention& a, const Item& next, int index) {
        const Chunk chunk(a, next, index);
        const Cache& c = a.cache;
        size = c.key_block();
        for (int key = chunk.from / c.block_size * c.block_size; key < chunk.limit; key += c.block_size)
            blocks[count++] = chunk.keys(key);
    }

    // Up to the share that is due after `step` of `steps`.
    void fetch(int step, int steps) {
        for (const int due = (step + 1) * count / steps; taken < due; taken++) prefetch(blocks[taken], size);
    }
};

// Weighted values of R row tiles over N columns of 16 dimensions.
template <int R, int N>
void mix(const bf16* weights, const bf16* const* values, int steps, int depth, int value_dim, int dim, float* mixed,
         int mixed_stride, Coming& coming) {
    const int64_t stride = int64_t(value_dim) * 4;
    zero_tiles<R, N>();
    for (int step = 0; step < steps; step++) {
        tile_load<4>(weights + step * depth, kWeightStride * 2);
        if constexpr (R == 2) tile_load<5>(weights + 16 * kWeightStride + step * depth, kWeightStride * 2);
        if constexpr (R == 1) coming.fetch(step, steps);
        const bf16* right = values[step] + dim * 2;
        column<R, N, 0>(right, stride);
        column<R, N, 1>(right + 32, stride);
        column<R, N, 2>(right + 64, stride);
        column<R, N, 3>(right + 96, stride);
    }
    store_tiles<R, N>(mixed + dim, mixed_stride);
}

template <int R>
void mix_chunk(const bf16* weights, const bf16* const* values, int steps, int depth, int value_dim, float* mixed,
               int stride, Coming& coming) {
    constexpr int wide = R == 2 ? 2 : 4;
    int dim = 0;
    for (; dim + wide * 16 <= value_dim; dim += wide * 16)
        mix<R, wide>(weights, values, steps, depth, value_dim, dim, mixed, stride, coming);
    for (; dim < value_dim; dim += 16) mix<R, 1>(weights, values, steps, depth, value_dim, dim, mixed, stride, coming);
}

// 2^x to about 3e-6 of its value; x at most 0, and treated as -126 below it.
inline __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-126.f));
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.33335581e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.61812911e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.55041087e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40226507e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93147181e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
    return _mm512_scalef_ps(p, n);
}

// The lanes of 16 columns from `column` that lie in [begin, end).
inline __mmask16 lanes_in(int column, int begin, int end) {
    const int low = larger(begin - column, 0), high = smaller(end - column, 16);
    return low < high ? __mmask16((0xffffu >> (16 - (high - low))) << low) : __mmask16(0);
}

inline __m512 capped(__m512 x, float cap) {
    // tanh of |x|, by 2^(-2 |x| log2 e), with x's sign.
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.f / cap));
    const __m512 e = power_of_two(_mm512_mul_ps(_mm512_abs_ps(y), _mm512_set1_ps(-2.f * kLog2E)));
    const __m512 one = _mm512_set1_ps(1.f);
    const __m512 size = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.f));
    return _mm512_mul_ps(_mm512_or_ps(size, sign), _mm512_set1_ps(cap));
}

// Scales, caps and biases a row's scores where they lie.
void adjust(const Attention& a, float* scores, int width, float slope, int distance) {
    const __m512 lanes = _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int i = 0; i < width; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_load_ps(scores + i), _mm512_set1_ps(a.scale));
        if (a.soft_cap != 0.f) x = capped(x, a.soft_cap);
        const __m512 away = _mm512_add_ps(lanes, _mm512_set1_ps(float(i + distance)));
        _mm512_store_ps(scores + i, _mm512_fmadd_ps(away, _mm512_set1_ps(slope), x));
    }
}

template <bool Full>
void weigh(const float* scores, bf16* weights, int width, int begin, int end, float scale, float& peak, float& total) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 best = lowest;
    for (int i = 0; i < width; i += 16) {
        const __m512 x = _mm512_load_ps(scores + i);
        best = Full ? _mm512_max_ps(best, x) : _mm512_mask_max_ps(best, lanes_in(i, begin, end), best, x);
    }
    const float highest = _mm512_reduce_max_ps(best);
    peak = highest * scale;
    const __m512 factor = _mm512_set1_ps(scale * kLog2E), shift = _mm512_set1_ps(-highest * (scale * kLog2E));
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < width; i += 16) {
        __m512 p = power_of_two(_mm512_fmadd_ps(_mm512_load_ps(scores + i), factor, shift));
        if (!Full) p = _mm512_maskz_mov_ps(lanes_in(i, begin, end), p);
        sum = _mm512_add_ps(sum, p);
        const __m256bh half = _mm512_cvtneps_pbh(p);
        _mm256_store_si256(reinterpret_cast<__m256i*>(weights + i), reinterpret_cast<const __m256i&>(half));
    }
    total = _mm512_reduce_add_ps(sum);
}

void weigh_rows(const Chunk& chunk, const Scratch& scratch, int width, const Softmax& out) {
    const Attention& a = chunk.a;
    const int group = a.group(), first = chunk.from;
    for (int r = 0; r < chunk.item.rows(); r++) {
        const int row = chunk.item.row_begin + r, end = chunk.view.end(row, group);
        const int low = larger(chunk.view.begin(row, group, a.window) - first, 0), high = smaller(end - first, width);
        float* scores = scratch.scores + r * kScoreStride;
        bf16* weights = scratch.weights + r * kWeightStride;
        if (low >= high) {
            out.peak[r] = -INFINITY;
            out.total[r] = 0.f;
            std::memset(weights, 0, width * sizeof(bf16));
            continue;
        }
        float scale = a.scale;
        if (a.soft_cap != 0.f || a.alibi_slopes) {
            const float slope = a.alibi_slopes ? a.alibi_slopes[chunk.item.kv_head * group + row % group] : 0.f;
            adjust(a, scores, width, slope, first - (end - 1));
            scale = 1.f;
        }
        if (low == 0 && high == width)
            weigh<true>(scores, weights, width, low, high, scale, out.peak[r], out.total[r]);
        else
            weigh<false>(scores, weights, width, low, high, scale, out.peak[r], out.total[r]);
    }
}

// The last tile's values, with zeros where no token has been written: 0 times what is there may be NaN.
const bf16* padded_tail(const Chunk& chunk, int key, bf16* tail) {
    const int dim = chunk.a.cache.value_dim, written = chunk.view.context - key;
    const int64_t pair = int64_t(dim) * 2;
    const int whole = written / 2;
    const bf16* values = chunk.values(key);
    std::memcpy(tail, values, whole * pair * sizeof(bf16));
    std::memset(tail + whole * pair, 0, (chunk.depth / 2 - whole) * pair * sizeof(bf16));
    if (written % 2)
        for (int d = 0; d < dim; d++) tail[whole * pair + 2 * d] = values[whole * pair + 2 * d];
    return tail;
}

}  // namespace

int64_t chunk_scratch(const Attention& a) { return scratch_bytes(a); }

void enter() {
    configured = 0;
    configure(16, 32, true);
}

void leave() {
    release_tiles();
    configured = 0;
}

void prepare_rows(const Attention& a, const Item& item, char* memory) {
    const Scratch scratch(a, memory);
    const int dim = a.cache.head_dim, key_dim = a.cache.key_dim, group = a.group();
    for (int row = item.row_begin; row < item.row_end; row++) {
        const int r = row - item.row_begin;
        alignas(64) bf16 padded[256 + 32];
        const int64_t offset = (a.query_start[item.sequence] + row / group) * a.query_stride +
                               int64_t(item.kv_head * group + row % group) * dim;
        if (a.type == Type::bf16) {
            std::memcpy(padded, static_cast<const bf16*>(a.query) + offset, dim * sizeof(bf16));
        } else {
            const float* query = static_cast<const float*>(a.query) + offset;
            for (int d = 0; d < dim; d += 8) {
                const __m128bh part = _mm256_cvtneps_pbh(_mm256_loadu_ps(query + d));
                std::memcpy(padded + d, &part, sizeof part);
            }
        }
        std::memset(padded + dim, 0, (key_dim - dim) * sizeof(bf16));
        bf16* tile = scratch.queries + int64_t(r / 16) * 16 * key_dim + r % 16 * 32;
        for (int d = 0; d < key_dim; d += 32) std::memcpy(tile + d * 16, padded + d, 64);
    }
}

void attend_chunk(const Attention& a, const Item& item, int index, char* memory, const Softmax& out,
                  const Item* next) {
    const Chunk chunk(a, item, index);
    const Scratch scratch(a, memory);
    const int rows = item.rows(), width = chunk.width(), depth = chunk.depth, key_dim = a.cache.key_dim;
    const int row_tiles = (rows + 15) / 16, tile_rows = smaller(rows, 16);
    const bool few = rows <= kFewRows;
    const bf16* keys[kChunk / 16];
    const bf16* values[kChunk / 16];
    for (int column = 0; column < width / 16; column++) keys[column] = chunk.keys(chunk.from + column * 16);
    for (int tile = 0; tile < row_tiles; tile += 2) {
        const bf16* queries = scratch.queries + int64_t(tile) * 16 * key_dim;
        float* scores = scratch.scores + tile * 16 * kScoreStride;
        const bool pair = tile + 1 < row_tiles;
        configure(tile_rows, 32, pair);
        if (pair)
            score_chunk<2>(chunk, queries, keys, width / 16, scores, false);
        else
            score_chunk<1>(chunk, queries, keys, width / 16, scores, few);
    }
    weigh_rows(chunk, scratch, width, out);
    Coming coming;
    if (few && next) coming.add(a, *next, next == &item ? index + 1 : next->chunk_begin);
    const int steps = width / depth;
    for (int step = 0; step < steps; step++) {
        const int key = chunk.from + step * depth;
        values[step] = key + depth > chunk.view.context ? padded_tail(chunk, key, scratch.tail) : chunk.values(key);
    }
    for (int tile = 0; tile < row_tiles; tile += 2) {
        const bf16* weights = scratch.weights + tile * 16 * kWeightStride;
        float* mixed = out.mixed + int64_t(tile) * 16 * out.stride;
        const bool pair = tile + 1 < row_tiles;
        configure(tile_rows, depth, pair);
        if (pair)
            mix_chunk<2>(weights, values, steps, depth, a.cache.value_dim, mixed, out.stride, coming);
        else
            mix_chunk<1>(weights, values, steps, depth, a.cache.value_dim, mixed, out.stride, coming);
    }
}

}  // namespace octavo::tiles
