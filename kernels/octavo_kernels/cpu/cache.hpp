// How a layer's keys and values lie in memory, and writing to them.
#pragma once

#include "types.hpp"

namespace octavo {

// plain:  keys [block, kv_head, key_dim, slot], values [block, kv_head, slot, value_dim].
// paired: keys [block, kv_head, key_dim / 2, slot, 2], values [block, kv_head, slot / 2, value_dim, 2], bfloat16: the
//         operand order of dot products over pairs, tiles included.
enum class Layout : int { plain = 0, paired = 1 };

// key_dim and value_dim are head_dim rounded up to what the kernels load at once; key_dim's padding holds zeros.
struct Cache {
    void* keys;
    void* values;
    Type type;
    Layout layout;
    int kv_heads, head_dim, key_dim, value_dim, block_size;

    int64_t key_block() const { return int64_t(key_dim) * block_size; }
    int64_t value_block() const { return int64_t(value_dim) * block_size; }
};

}  // namespace octavo
