// AMX tiles, by inline assembly: gcc 12's _tile_loadconfig claims to read 8 of its 64 bytes, so that the stores before
// it may vanish, and its _tile_loadd does not say that it reads memory. Only for `*_amx.cpp`.
#pragma once

#include <cstdint>

namespace octavo::tiles {

// Shapes of the eight tiles, as the processor reads them.
struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

static inline void load_config(const TileConfig& config) {
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

static inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
static inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

template <int T>
static inline void tile_load(const void* memory, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(memory), "r"(stride_bytes), "i"(T) : "memory");
}

template <int T>
static inline void tile_store(void* memory, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(memory), "r"(stride_bytes), "i"(T) : "memory");
}

// C [rows][16] float32 += A [rows][pairs of bfloat16] x B [pairs][16][2].
template <int C, int A, int B>
static inline void tile_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace octavo::tiles
