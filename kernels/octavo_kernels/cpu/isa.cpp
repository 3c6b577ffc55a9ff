#include "isa.hpp"

#include <atomic>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

#if defined(OCTAVO_WITH_AMX)
// Linux gives the 8 KiB of tile state only to processes that ask (arch_prctl ARCH_REQ_XCOMP_PERM, XTILEDATA).
bool tiles_permitted() {
    constexpr int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

bool has_amx() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, amx_int8 = 1u << 25;
    constexpr unsigned wanted = amx_bf16 | amx_tile | amx_int8;
    if ((d & wanted) != wanted) return false;
    constexpr unsigned avx512_bf16 = 1u << 5;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & avx512_bf16)) return false;
    return __builtin_cpu_supports("avx512vnni") && tiles_permitted();
}
#endif

Isa detect() {
    Isa found = Isa::generic;
#if defined(OCTAVO_WITH_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found = Isa::avx2;
#endif
#if defined(OCTAVO_WITH_AVX512)
    if (found == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        found = Isa::avx512;
#endif
#if defined(OCTAVO_WITH_AMX)
    if (found == Isa::avx512 && has_amx()) found = Isa::amx;
#endif
    return found;
}

std::atomic<int> chosen{-1};

}  // namespace

Isa best_isa() {
    static const Isa best = detect();
    return best;
}

bool has_vnni() {
#if defined(OCTAVO_WITH_VNNI)
    return best_isa() >= Isa::avx512 && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

Isa active_isa() {
    const int isa = chosen.load(std::memory_order_relaxed);
    return isa < 0 ? best_isa() : static_cast<Isa>(isa);
}

void set_active_isa(Isa isa) {
    if (isa > best_isa()) throw std::invalid_argument("this machine, or this build, does not have that instruction set");
    chosen.store(static_cast<int>(isa), std::memory_order_relaxed);
}

}  // namespace octavo
