// Calls the variant of a `*_simd.cpp` function that the active instruction set asks for.
#pragma once

#include "isa.hpp"

// Declares the functions of `declarations` once for each variant.
#define OCTAVO_FOR_EACH_ISA(declarations) \
    namespace generic {                   \
    declarations                          \
    }                                     \
    namespace avx2 {                      \
    declarations                          \
    }                                     \
    namespace avx512 {                    \
    declarations                          \
    }                                     \
    namespace amx {                       \
    declarations                          \
    }

#if defined(OCTAVO_WITH_AMX)
#define OCTAVO_PICK_AMX(function) \
    if (::octavo::active_isa() >= ::octavo::Isa::amx) return ::octavo::amx::function;
#else
#define OCTAVO_PICK_AMX(function)
#endif
#if defined(OCTAVO_WITH_AVX512)
#define OCTAVO_PICK_AVX512(function) \
    if (::octavo::active_isa() >= ::octavo::Isa::avx512) return ::octavo::avx512::function;
#else
#define OCTAVO_PICK_AVX512(function)
#endif
#if defined(OCTAVO_WITH_AVX2)
#define OCTAVO_PICK_AVX2(function) \
    if (::octavo::active_isa() >= ::octavo::Isa::avx2) return ::octavo::avx2::function;
#else
#define OCTAVO_PICK_AVX2(function)
#endif

// The variant of `function` to use, a pointer.
#define OCTAVO_PICK(function)                       \
    ([]() -> decltype(&::octavo::generic::function) { \
        OCTAVO_PICK_AMX(function)                   \
        OCTAVO_PICK_AVX512(function)                \
        OCTAVO_PICK_AVX2(function)                  \
        return ::octavo::generic::function;         \
    }())
