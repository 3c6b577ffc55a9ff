// Attention with AMX tiles over a paired bfloat16 cache.
#pragma once

#include "attention.hpp"

namespace octavo::tiles {

void attend_chunk(const Attention&, const Item&, int chunk, char* scratch, const Softmax& out, const Item* next);
void prepare_rows(const Attention&, const Item&, char* scratch);
int64_t chunk_scratch(const Attention&);

// A thread's tiles are configured between these two.
void enter();
void leave();

}  // namespace octavo::tiles
