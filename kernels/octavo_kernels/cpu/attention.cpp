// Plans a step's attention, shares it among the threads, and merges what was split.
#include "attention.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "attention_amx.hpp"

namespace octavo {
namespace {

// What a chunk costs beside its keys and rows, in key-rows.
constexpr int64_t kTileRows = 16;
constexpr int64_t kSmall = 1 << 14;  // key-rows below which one thread is faster

class Buffer {
  public:
    ~Buffer() { std::free(memory_); }

    char* at_least(int64_t bytes) {
        if (bytes > size_) {
            std::free(memory_);
            size_ = (bytes + 4095) / 4096 * 4096;
            memory_ = static_cast<char*>(std::aligned_alloc(4096, size_));
            if (!memory_) {
                size_ = 0;
                throw std::bad_alloc();
            }
        }
        return memory_;
    }

  private:
    char* memory_ = nullptr;
    int64_t size_ = 0;
};

struct Kernels {
    decltype(&generic::attend_chunk) attend;
    decltype(&generic::prepare_rows) prepare;
    decltype(&generic::chunk_scratch) scratch;
    decltype(&generic::merge) merge;
    decltype(&generic::write_rows) write;
    bool uses_tiles;

    static Kernels pick(const Attention& a) {
        Kernels kernels{OCTAVO_PICK(attend_chunk), OCTAVO_PICK(prepare_rows), OCTAVO_PICK(chunk_scratch),
                        OCTAVO_PICK(merge),        OCTAVO_PICK(write_rows),   false};
#if defined(OCTAVO_WITH_AMX)
        if (a.cache.layout == Layout::paired) {
            kernels.attend = tiles::attend_chunk;
            kernels.prepare = tiles::prepare_rows;
            kernels.scratch = tiles::chunk_scratch;
            kernels.uses_tiles = true;
        }
#endif
        return kernels;
    }
};

// Several items that must be merged: the same rows, their chunks in order.
struct Split {
    int first_item, num_items;
};

struct Plan {
    std::vector<Item> items;
    std::vector<Split> splits;
    std::vector<int> tasks;  // the first item of each; a thread takes a task at a time
    int64_t partial_floats = 0;
    int64_t cost = 0;
};

int stride_of(const Attention& a) { return a.cache.value_dim + 16; }

int64_t cost_of(const Item& item) {
    return int64_t(item.chunk_end - item.chunk_begin) * kChunk * (item.rows() + kTileRows);
}

void add_tiles(const Attention& a, Plan& plan, int sequence) {
    const int queries = a.query_start[sequence + 1] - a.query_start[sequence];
    const int rows = queries * a.group();
    // The last tiles see most keys, and go first.
    for (int end = rows; end > 0;) {
        const int begin = (end - 1) / kMaxRows * kMaxRows;
        for (int head = 0; head < a.cache.kv_heads; head++) {
            Item item{sequence, head, begin, end, 0, 0, -1};
            const ItemView view(a, item);
            item.chunk_begin = view.begin(begin, a.group(), a.window) / kChunk;
            item.chunk_end = (view.end(end - 1, a.group()) + kChunk - 1) / kChunk;
            plan.items.push_back(item);
            plan.cost += cost_of(item);
        }
        end = begin;
    }
}

// Cuts the items that would keep one thread busy after the others are done.
void split_items(const Attention& a, Plan& plan, int threads) {
    const int64_t limit = plan.cost / (threads * 4) + 1;
    std::vector<Item> whole;
    whole.swap(plan.items);
    for (const Item& item : whole) {
        const int chunks = item.chunk_end - item.chunk_begin;
        const int pieces = int(std::min<int64_t>(chunks, (cost_of(item) + limit - 1) / limit));
        if (pieces <= 1) {
            plan.items.push_back(item);
            continue;
        }
        plan.splits.push_back({int(plan.items.size()), pieces});
        for (int piece = 0; piece < pieces; piece++) {
            Item part = item;
            part.chunk_begin = item.chunk_begin + chunks * piece / pieces;
            part.chunk_end = item.chunk_begin + chunks * (piece + 1) / pieces;
            part.partial = plan.partial_floats;
            plan.partial_floats +=
                (part.chunk_end - part.chunk_begin) * Softmax::floats(item.rows(), stride_of(a));
            plan.items.push_back(part);
        }
    }
}

void make_plan(const Attention& a, Plan& plan, int threads) {
    plan.items.clear();
    plan.splits.clear();
    plan.tasks.clear();
    plan.partial_floats = plan.cost = 0;
    for (int sequence = 0; sequence < a.sequences; sequence++) add_tiles(a, plan, sequence);
    if (threads > 1 && plan.cost > kSmall) split_items(a, plan, threads);
    const int64_t share = plan.cost / (threads * 16) + 1;
    int64_t taken = share;
    for (size_t index = 0; index < plan.items.size(); index++) {
        if (taken >= share) {
            plan.tasks.push_back(int(index));
            taken = 0;
        }
        taken += cost_of(plan.items[index]);
    }
    plan.tasks.push_back(int(plan.items.size()));
}

void run_item(const Attention& a, const Kernels& kernels, const Item& item, const Item* next, char* scratch,
              float* partials, float* own) {
    const int stride = stride_of(a), rows = item.rows();
    const int64_t floats = Softmax::floats(rows, stride);
    kernels.prepare(a, item, scratch);
    if (item.partial >= 0) {
        float* place = partials + item.partial;
        for (int chunk = item.chunk_begin; chunk < item.chunk_end; chunk++, place += floats)
            kernels.attend(a, item, chunk, scratch, Softmax::at(place, rows, stride),
                           chunk + 1 < item.chunk_end ? &item : next);
        return;
    }
    const Softmax total = Softmax::at(own, kMaxRows, stride);
    const Softmax part = Softmax::at(own + Softmax::floats(kMaxRows, stride), kMaxRows, stride);
    for (int chunk = item.chunk_begin; chunk < item.chunk_end; chunk++) {
        kernels.attend(a, item, chunk, scratch, part, chunk + 1 < item.chunk_end ? &item : next);
        kernels.merge(total, part, rows, a.cache.value_dim, chunk == item.chunk_begin);
    }
    kernels.write(a, item, total);
}

void merge_split(const Attention& a, const Kernels& kernels, const Plan& plan, const Split& split,
                 const float* partials, float* own) {
    const int stride = stride_of(a);
    Item whole = plan.items[split.first_item];
    const int rows = whole.rows();
    const Softmax total = Softmax::at(own, kMaxRows, stride);
    bool first = true;
    for (int index = 0; index < split.num_items; index++) {
        const Item& item = plan.items[split.first_item + index];
        float* place = const_cast<float*>(partials) + item.partial;
        for (int chunk = item.chunk_begin; chunk < item.chunk_end; chunk++) {
            kernels.merge(total, Softmax::at(place, rows, stride), rows, a.cache.value_dim, first);
            place += Softmax::floats(rows, stride);
            first = false;
        }
    }
    kernels.write(a, whole, total);
}

}  // namespace

void paged_attention(const Attention& a) {
    thread_local Plan plan;
    thread_local Buffer partial_memory, scratch_memory;
    const int available = omp_get_max_threads();
    make_plan(a, plan, available);
    if (plan.items.empty()) return;
    // All threads or one: a smaller team would make libgomp end the threads it leaves out.
    const int threads = plan.cost > kSmall ? available : 1;
    const Kernels kernels = Kernels::pick(a);
    const int64_t own_floats = 2 * Softmax::floats(kMaxRows, stride_of(a));
    const int64_t scratch_bytes = (kernels.scratch(a) + own_floats * 4 + 8191) / 4096 * 4096;
    char* scratch = scratch_memory.at_least(scratch_bytes * threads);
    float* partials = reinterpret_cast<float*>(partial_memory.at_least(plan.partial_floats * 4));
    const Plan& shared = plan;
    std::atomic<int> next_task{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const FlushDenormals guard;
        char* mine = scratch + scratch_bytes * omp_get_thread_num();
        float* own = reinterpret_cast<float*>(mine + scratch_bytes) - own_floats;
#if defined(OCTAVO_WITH_AMX)
        if (kernels.uses_tiles) tiles::enter();
#endif
        const int num_tasks = int(shared.tasks.size()) - 1;
        for (int task = next_task++; task < num_tasks; task = next_task++) {
            const int end = shared.tasks[task + 1];
            for (int index = shared.tasks[task]; index < end; index++) {
                const Item* next = index + 1 < end ? &shared.items[index + 1] : nullptr;
                run_item(a, kernels, shared.items[index], next, mine, partials, own);
            }
        }
#if defined(OCTAVO_WITH_AMX)
        if (kernels.uses_tiles) tiles::leave();
#endif
        if (!shared.splits.empty()) {
#pragma omp barrier
#pragma omp for schedule(dynamic)
            for (size_t index = 0; index < shared.splits.size(); index++)
                merge_split(a, kernels, shared, shared.splits[index], partials, own);
        }
    }
}

}  // namespace octavo
