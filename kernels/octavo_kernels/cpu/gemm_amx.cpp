// The product with AMX tiles. Two columns of tiles, one panel, by one or two rows of tiles; with few rows the weight is
// read once from memory, front to back, and that is the bound; with many, blocks of rows stay in the second-level cache.
#include <immintrin.h>
#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "gemm.hpp"
#include "tiles.hpp"

namespace octavo {
namespace {

using namespace tiles;

constexpr int kTile = 16 * 32;                // bfloat16 in a tile
constexpr int kTileRows = 16;
constexpr int64_t kBlockElements = 512 * 1024;  // of x, in bfloat16: what stays in the second-level cache beside a panel
constexpr int64_t kBlockTiles = 8;            // row tiles for which reading a panel once more is worth its time
constexpr int kPrefetch = 8 * 1024;           // elements ahead of the tile being read
constexpr int64_t kManyRows = 64;             // from here on the weight is read from caches, and prefetching is in the way
constexpr int64_t kSmallWork = 64 * 1024;     // multiplications up to which one thread is quicker

// Memory of the calling thread that grows and stays.
class Scratch {
  public:
    ~Scratch() { std::free(memory_); }

    bf16* at_least(int64_t elements) {
        if (held_ < elements) {
            std::free(memory_);
            held_ = (elements + 2047) / 2048 * 2048;
            memory_ = static_cast<bf16*>(std::aligned_alloc(64, size_t(held_) * sizeof(bf16)));
            if (memory_ == nullptr) {
                held_ = 0;
                throw std::bad_alloc();
            }
        }
        return memory_;
    }

  private:
    bf16* memory_ = nullptr;
    int64_t held_ = 0;
};

void configure(int rows) {
    TileConfig config;
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = uint8_t(tile >= 6 ? kTileRows : rows);
        config.row_bytes[tile] = 64;
    }
    load_config(config);
}

// Row tile `tile` of x as tiles [step][16][32], zeros where x has no row or no input.
void pack_rows(const Product& p, int64_t tile, int64_t inputs, int64_t steps, bf16* out) {
    const int64_t first = tile * kTileRows;
    const int64_t rows = p.rows - first < kTileRows ? p.rows - first : kTileRows;
    const int64_t padded = p.rows > kTileRows ? kTileRows : rows;
    const __mmask32 tail = __mmask32(inputs % 32 ? (1u << (inputs % 32)) - 1 : ~0u);
    for (int64_t row = 0; row < padded; row++) {
        const bf16* source = p.x + (first + row) * p.x_stride;
        for (int64_t step = 0; step < steps; step++) {
            const __mmask32 mask = row >= rows ? 0 : step + 1 < steps ? ~__mmask32(0) : tail;
            const __m512i values = _mm512_maskz_loadu_epi16(mask, source + step * 32);
            _mm512_store_si512(out + step * kTile + row * 32, values);
        }
    }
}

inline __m512 exp512(__m512 x) {
    // 2^n e^r with r in [-ln 2 / 2, ln 2 / 2], by a polynomial (Cephes' expf).
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-87.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(_mm512_mul_ps(y, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

// x / (1 + exp(-argument)); the quotient by an approximation good to 2^-23 or so.
inline __m512 sigmoid_times(__m512 x, __m512 argument) {
    const __m512 divisor = _mm512_add_ps(_mm512_set1_ps(1.0f), exp512(_mm512_sub_ps(_mm512_setzero_ps(), argument)));
    const __m512 rough = _mm512_rcp14_ps(divisor);
    return _mm512_mul_ps(x, _mm512_mul_ps(rough, _mm512_fnmadd_ps(divisor, rough, _mm512_set1_ps(2.0f))));
}

template <Epilogue E>
inline __m512 activate(__m512 x) {
    if constexpr (E == Epilogue::silu) return sigmoid_times(x, x);
    // gelu by tanh: x / (1 + exp(-2 a)), a = sqrt(2 / pi) (x + 0.044715 x^3)
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 a = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, x);
    return sigmoid_times(x, _mm512_mul_ps(a, _mm512_set1_ps(1.5957691216f)));
}

inline __m512 widen(const bf16* p, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

inline void store_bf16(bf16* p, __mmask16 mask, __m512 x) {
    _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

inline __mmask16 lanes(int64_t count) { return count >= 16 ? __mmask16(0xffff) : __mmask16((1u << (count < 0 ? 0 : count)) - 1); }

constexpr bool is_gated(Epilogue e) { return e == Epilogue::silu || e == Epilogue::gelu_tanh; }

// Up to 32 rows of 32 sums on their way to where they belong. They go while the next block's products run: the tiles' unit
// and the memory it waits for leave the vector units idle.
template <Epilogue E>
class Finish {
  public:
    Finish() = default;
    Finish(const PackedWeight& w, const Product& p, const float* sums, int64_t row, int64_t rows, int64_t panel)
        : sums_(sums), left_rows_(rows) {
        const int64_t column = panel * (is_gated(E) ? 16 : kPanelColumns);
        const int64_t width = (is_gated(E) ? w.outputs / 2 : w.outputs) - column;
        left_ = lanes(width);
        right_ = is_gated(E) ? left_ : lanes(width - 16);
        left_bias_ = right_bias_ = _mm512_setzero_ps();
        if (p.bias != nullptr) {
            left_bias_ = widen(p.bias + column, left_);
            right_bias_ = widen(p.bias + column + (is_gated(E) ? w.outputs / 2 : 16), right_);
        }
        out_ = static_cast<char*>(p.out) + (row * p.out_stride + column) * kElement;
        stride_ = p.out_stride * kElement;
    }

    void advance(int64_t rows) {
        for (; rows > 0 && left_rows_ > 0; rows--, left_rows_--, sums_ += 32, out_ += stride_) {
            const __m512 a = _mm512_add_ps(_mm512_load_ps(sums_), left_bias_);
            const __m512 b = _mm512_add_ps(_mm512_load_ps(sums_ + 16), right_bias_);
            if constexpr (is_gated(E)) {
                store_bf16(reinterpret_cast<bf16*>(out_), left_, _mm512_mul_ps(activate<E>(a), b));
            } else if constexpr (E == Epilogue::store_f32) {
                _mm512_mask_storeu_ps(out_, left_, a);
                _mm512_mask_storeu_ps(out_ + 64, right_, b);
            } else {
                store_bf16(reinterpret_cast<bf16*>(out_), left_, a);
                store_bf16(reinterpret_cast<bf16*>(out_ + 32), right_, b);
            }
        }
    }

    void complete() { advance(left_rows_); }

  private:
    static constexpr int64_t kElement = E == Epilogue::store_f32 ? 4 : 2;
    const float* sums_ = nullptr;
    char* out_ = nullptr;
    int64_t left_rows_ = 0, stride_ = 0;
    __mmask16 left_ = 0, right_ = 0;
    __m512 left_bias_, right_bias_;
};

// Sums of R row tiles over `steps` steps of a panel; if `resume`, on top of what `sums` holds.
template <Epilogue E, int R, bool Many>
void block(const bf16* x, int64_t next_tile, const bf16* panel, int64_t steps, float* sums, bool resume,
           Finish<E>& previous, int64_t rows_per_step) {
    if (resume) {
        tile_load<0>(sums, 128);
        tile_load<1>(sums + 16, 128);
        if constexpr (R == 2) {
            tile_load<2>(sums + 16 * 32, 128);
            tile_load<3>(sums + 16 * 32 + 16, 128);
        }
    } else {
        tile_zero<0>();
        tile_zero<1>();
        if constexpr (R == 2) {
            tile_zero<2>();
            tile_zero<3>();
        }
    }
    for (int64_t step = 0; step < steps; step++) {
        if constexpr (!Many) {
            const char* ahead = reinterpret_cast<const char*>(panel + step * 2 * kTile + kPrefetch);
#pragma GCC unroll 32
            for (int line = 0; line < 32; line++) _mm_prefetch(ahead + line * 64, _MM_HINT_T0);
        }
        tile_load<4>(x + step * kTile, 64);
        tile_load<6>(panel + step * 2 * kTile, 64);
        tile_product<0, 4, 6>();
        tile_load<7>(panel + step * 2 * kTile + kTile, 64);
        tile_product<1, 4, 7>();
        if constexpr (R == 2) {
            tile_load<5>(x + next_tile + step * kTile, 64);
            tile_product<2, 5, 6>();
            tile_product<3, 5, 7>();
        }
        previous.advance(rows_per_step);
    }
    previous.complete();
    tile_store<0>(sums, 128);
    tile_store<1>(sums + 16, 128);
    if constexpr (R == 2) {
        tile_store<2>(sums + 16 * 32, 128);
        tile_store<3>(sums + 16 * 32 + 16, 128);
    }
}

// Blocks of rows whose x stays in the second-level cache. Where whole rows of x are too long for that, a block is computed
// in chunks of the inputs, and its sums wait in memory; otherwise each panel would be read again for every few rows.
template <Epilogue E, bool Many>
void run_panels(const PackedWeight& w, const Product& p, const bf16* x, int64_t first_panel, int64_t last_panel) {
    const int64_t steps = w.steps(), tile_size = steps * kTile;
    const int64_t row_tiles = (p.rows + kTileRows - 1) / kTileRows;
    const int64_t fitting = kBlockElements / tile_size / 2 * 2;
    const bool whole = !Many || fitting >= kBlockTiles;
    const int64_t block_tiles = !Many ? row_tiles : whole ? fitting : kBlockTiles;
    const int64_t chunk = whole ? steps : kBlockElements / kBlockTiles / kTile;
    const int64_t pairs = (block_tiles + 1) / 2;
    thread_local Scratch waiting;
    alignas(64) float turns[2][32 * 32];
    float* sums = whole ? nullptr : reinterpret_cast<float*>(waiting.at_least((last_panel - first_panel) * pairs * 2048));
    const int64_t rows_per_step = (31 + chunk) / chunk;
    Finish<E> previous;
    int turn = 0;
    for (int64_t begin = 0; begin < row_tiles; begin += block_tiles) {
        const int64_t end = begin + block_tiles < row_tiles ? begin + block_tiles : row_tiles;
        for (int64_t from = 0; from < steps; from += chunk) {
            const int64_t count = from + chunk < steps ? chunk : steps - from;
            for (int64_t panel = first_panel; panel < last_panel; panel++) {
                const bf16* data = w.data + panel * w.panel_size() + from * 2 * kTile;
                for (int64_t tile = begin; tile < end; tile += 2) {
                    const bool two = tile + 1 < end;
                    const bf16* at = x + tile * tile_size + from * kTile;
                    float* place =
                        whole ? turns[turn] : sums + ((panel - first_panel) * pairs + (tile - begin) / 2) * 1024;
                    if (two) block<E, 2, Many>(at, tile_size, data, count, place, from > 0, previous, rows_per_step);
                    else block<E, 1, Many>(at, tile_size, data, count, place, from > 0, previous, rows_per_step);
                    if (from + count < steps) continue;
                    const int64_t row = tile * kTileRows, most = two ? 2 * kTileRows : kTileRows;
                    previous = Finish<E>(w, p, place, row, p.rows - row < most ? p.rows - row : most, panel);
                    turn = 1 - turn;
                }
            }
        }
        // The next block's sums may lie where these do.
        if (!whole) previous.complete();
    }
    previous.complete();
}

template <Epilogue E>
void run(const PackedWeight& w, const Product& p, const bf16* x, int64_t first_panel, int64_t last_panel) {
    if (p.rows < kManyRows) run_panels<E, false>(w, p, x, first_panel, last_panel);
    else run_panels<E, true>(w, p, x, first_panel, last_panel);
}

}  // namespace

void multiply_amx(const PackedWeight& w, const Product& p) {
    if (p.rows <= 0) return;
    const int64_t steps = w.steps(), tile_size = steps * kTile, panels = w.panels();
    const int64_t row_tiles = (p.rows + kTileRows - 1) / kTileRows;
    thread_local Scratch scratch;
    bf16* x = scratch.at_least(row_tiles * tile_size);
    // All threads or one: a smaller team would make libgomp end the threads it leaves out.
    const bool alone = p.rows * w.outputs * w.inputs <= kSmallWork;
#pragma omp parallel if (!alone)
    {
        const FlushDenormals guard;
        configure(int(p.rows < kTileRows ? p.rows : kTileRows));
#pragma omp for schedule(static)
        for (int64_t tile = 0; tile < row_tiles; tile++) pack_rows(p, tile, w.inputs, steps, x + tile * tile_size);
        const int64_t me = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t first = panels * me / team, last = panels * (me + 1) / team;
        switch (p.epilogue) {
            case Epilogue::store: run<Epilogue::store>(w, p, x, first, last); break;
            case Epilogue::silu: run<Epilogue::silu>(w, p, x, first, last); break;
            case Epilogue::gelu_tanh: run<Epilogue::gelu_tanh>(w, p, x, first, last); break;
            case Epilogue::store_f32: run<Epilogue::store_f32>(w, p, x, first, last); break;
        }
        release_tiles();
    }
}

}  // namespace octavo
