// Element types, and the guard every thread of a kernel holds.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace octavo {

struct bf16 {
    uint16_t bits;
};

enum class Type : int { f32 = 0, bf16 = 1 };

// Flushes denormals to zero while it lives: arithmetic on them is some 35 times slower.
class FlushDenormals {
  public:
#if defined(__SSE__)
    FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#else
    FlushDenormals() {}
    ~FlushDenormals() {}
#endif
};

}  // namespace octavo
