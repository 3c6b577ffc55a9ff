// The instruction set in use: the best the machine has, or the one that was asked for.
#pragma once

namespace octavo {

enum class Isa : int { generic = 0, avx2 = 1, avx512 = 2, amx = 3 };

// What this machine and this build can run. Asks the kernel for the tiles' state the first time.
Isa best_isa();

// AVX-512 VNNI, which Isa::amx implies and Isa::avx512 does not.
bool has_vnni();

Isa active_isa();

// Throws std::invalid_argument for one the machine or the build does not have.
void set_active_isa(Isa isa);

}  // namespace octavo
