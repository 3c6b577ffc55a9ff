// Packing: the order of a weight in memory that the tiles read from front to back.
#include "gemm.hpp"

#include <cstring>

namespace octavo {
namespace {

constexpr int64_t kTileColumns = 16;
constexpr int64_t kManyIds = 64;  // from here on a second thread is worth its start

// The row of the weight that becomes output column `column`.
int64_t source_row(int64_t column, int64_t outputs, bool gated) {
    if (!gated) return column;
    const int64_t pair = column / kPanelColumns;
    const int64_t inside = column % kPanelColumns;
    const int64_t row = pair * kTileColumns + inside % kTileColumns;
    if (row >= outputs / 2) return outputs;
    return inside < kTileColumns ? row : outputs / 2 + row;
}

}  // namespace

int64_t packed_size(int64_t outputs, int64_t inputs) {
    const PackedWeight shape{nullptr, outputs, inputs};
    return shape.panels() * shape.panel_size();
}

void pack_weight(const PackedWeight& packed, const bf16* weight, int64_t row_stride, bool gated) {
    const int64_t panels = gated ? (packed.outputs / 2 + kTileColumns - 1) / kTileColumns : packed.panels();
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < panels; panel++) {
        bf16* out = packed.data + panel * packed.panel_size();
        std::memset(static_cast<void*>(out), 0, size_t(packed.panel_size()) * sizeof(bf16));
        for (int64_t column = 0; column < kPanelColumns; column++) {
            const int64_t row = source_row(panel * kPanelColumns + column, packed.outputs, gated);
            if (row >= packed.outputs) continue;
            const bf16* source = weight + row * row_stride;
            bf16* tile = out + column / kTileColumns * 512 + column % kTileColumns * 2;
            for (int64_t input = 0; input < packed.inputs; input++) {
                tile[input / kStepInputs * 1024 + input % kStepInputs / 2 * 32 + input % 2] = source[input];
            }
        }
    }
}

void unpack_rows(const PackedWeight& packed, const int64_t* ids, int64_t count, bf16* out) {
#pragma omp parallel for schedule(static) if (count > kManyIds)
    for (int64_t i = 0; i < count; i++) {
        const int64_t column = ids[i] % kPanelColumns;
        const bf16* tile = packed.data + ids[i] / kPanelColumns * packed.panel_size() + column / kTileColumns * 512 +
                           column % kTileColumns * 2;
        bf16* row = out + i * packed.inputs;
        for (int64_t input = 0; input + 1 < packed.inputs; input += 2) {
            std::memcpy(static_cast<void*>(row + input), tile + input / kStepInputs * 1024 + input % kStepInputs * 16, 4);
        }
        if (packed.inputs % 2) {
            const int64_t last = packed.inputs - 1;
            row[last] = tile[last / kStepInputs * 1024 + last % kStepInputs * 16];
        }
    }
}

}  // namespace octavo
