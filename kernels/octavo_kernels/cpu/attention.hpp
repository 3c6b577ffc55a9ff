// Causal attention of ragged queries over the paged cache.
//
// The rows of one sequence and KV head, its queries times the query heads that share the KV head, are cut into tiles;
// keys into chunks of kChunk at fixed positions. Every chunk has a softmax of its own, and chunks are merged in order
// by their largest scores and sums (Milakov and Gimelshein, 2018; Dao et al., 2022). Which thread computes a chunk, and
// what else is in the batch, therefore changes no bit of a row's result.
#pragma once

#include "cache.hpp"
#include "dispatch.hpp"

namespace octavo {

constexpr int kChunk = 256;
constexpr int kMaxRows = 64;

struct Attention {
    const void* query;  // [T, heads, head_dim], query_stride between tokens
    void* out;          // likewise, out_stride
    Type type;
    int64_t query_stride, out_stride;
    Cache cache;
    const int32_t* query_start;  // [sequences + 1]
    const int32_t* seq_lens;
    const int32_t* block_table;  // [sequences, table_stride]
    int64_t table_stride;
    int sequences, heads;
    float scale;
    int window;      // 0: none
    float soft_cap;  // 0: none
    const float* alibi_slopes;  // [heads] or null

    int group() const { return heads / cache.kv_heads; }
};

// Rows [row_begin, row_end) of a sequence and KV head over key chunks [chunk_begin, chunk_end). Row r is query
// r / group, head r % group.
struct Item {
    int sequence, kv_head, row_begin, row_end, chunk_begin, chunk_end;
    int64_t partial;  // where in the shared partials its chunks' results go, floats; -1: it covers all chunks

    int rows() const { return row_end - row_begin; }
};

// Positions and addresses that all chunks of an item share.
struct ItemView {
    int context, first_position;  // of the sequence's first query in this step
    const int32_t* table;

    ItemView(const Attention& a, const Item& item)
        : context(a.seq_lens[item.sequence]),
          first_position(context - (a.query_start[item.sequence + 1] - a.query_start[item.sequence])),
          table(a.block_table + item.sequence * a.table_stride) {}

    // The key after the last that `row` sees, and the first it sees.
    int end(int row, int group) const { return first_position + row / group + 1; }
    int begin(int row, int group, int window) const {
        const int first = window ? end(row, group) - window : 0;
        return first > 0 ? first : 0;
    }
};

// The results of some rows over some keys: largest score, sum of weights, weighted values [row][stride].
struct Softmax {
    float* peak;
    float* total;
    float* mixed;
    int stride;

    // Room for whole tiles of 16 rows, so that all parts stay 64-byte aligned.
    static int64_t padded(int rows) { return (rows + 15) / 16 * 16; }
    static int64_t floats(int rows, int stride) { return padded(rows) * (2 + stride); }
    static Softmax at(float* memory, int rows, int stride) {
        return {memory, memory + padded(rows), memory + 2 * padded(rows), stride};
    }
};

// Attends over one chunk; a thread's scratch holds what it needs, scratch_bytes of it, 64-byte aligned.
// `next` is the item the thread will take after this one, or null.
typedef void (*ChunkFunction)(const Attention&, const Item&, int chunk, char* scratch, const Softmax& out,
                              const Item* next);

OCTAVO_FOR_EACH_ISA(void attend_chunk(const Attention&, const Item&, int chunk, char* scratch, const Softmax& out,
                                      const Item* next);
                    void prepare_rows(const Attention&, const Item&, char* scratch);
                    int64_t chunk_scratch(const Attention&);
                    void merge(const Softmax& into, const Softmax& from, int rows, int size, bool first);
                    void write_rows(const Attention&, const Item&, const Softmax&);)

void paged_attention(const Attention&);

}  // namespace octavo
