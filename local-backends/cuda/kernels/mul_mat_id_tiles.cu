// compute: 75 80
// The last pass of MUL_MAT_ID with many tokens: a block for a tile of rows and columns of one expert.
#include "common.cuh"
#include "blocks.cuh"
#include "experts.cuh"
#include "halves.cuh"
#include "matrix.cuh"
#include "unpack.cuh"
#include "mma_tile.cuh"

// Blocks that are neighbours may have the same weights.
template <int T>
INLINE void mul_mat_id(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    u32 number = blockIdx.x % node.p[5], m = blockIdx.x / node.p[5] * TILE;
    const u32 *tiles = tiles_of(node), *tile = tiles + HEAD + number * TILE_NUMBERS, *order = order_of(node);
    if (number >= tiles[0]) {
        return;
    }
    // The number of a column may be anything where another queue of the client has written the ids meanwhile.
    u32 used = y.ne[1], pairs = used * y.ne[2], expert = min(tile[0], a.ne[2] - 1), end = min(tile[2], pairs), begin = min(tile[1], end);
    auto pair_of = [&](u32 c) { return min(order[min(begin + c, end - 1)], pairs - 1); };
    mma_tile<T, TILE, TILE>(
        node, row(a, 0, expert, 0), m, {0, 1},
        [&](u32 c) {
            u32 pair = pair_of(c);
            return pair % used % b.ne[1] + pair / used * b.ne[1];
        },
        [&](u32 c) {
            u32 pair = pair_of(c);
            return begin + c < end ? row(y, pair % used, pair / used, 0) : nullptr;
        });
}

#define MAKE(T) \
    KERNEL __launch_bounds__(128) mul_mat_id_tiles_##T(const Node node) { mul_mat_id<T>(node); }
MAKE(F16)
#if __CUDA_ARCH__ >= 800
MAKE(BF16)
#endif
FOR_EVERY_BLOCK(MAKE)
