// compute: 61 75 80
// MUL_MAT with many columns, in tiles: on tensor cores where there are some, and weights are not F32. Entries say how large tiles are.
#include "common.cuh"
#include "blocks.cuh"
#include "fma_tile.cuh"

#define MAKE(T) \
    KERNEL mul_mat_##T##_64(const Node node) { fma_tile<T>(node); }
MAKE(F32)
#if __CUDA_ARCH__ < 800
MAKE(BF16)
#endif

#if __CUDA_ARCH__ < 750
MAKE(F16)
FOR_EVERY_BLOCK(MAKE)
#else
#include "halves.cuh"
#include "matrix.cuh"
#include "unpack.cuh"
#include "mma_tile.cuh"

// Tiles that are neighbours have the same weights.
template <int T, u32 SIZE>
INLINE void mul_mat(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    u32 across = (y.ne[1] + SIZE - 1) / SIZE, down = (y.ne[0] + SIZE - 1) / SIZE;
    u32 parts = node.p[3], tile = blockIdx.x / parts, batch = tile / across / down;
    u32 first = tile % across * SIZE, m = tile / across % down * SIZE;
    u32 i2 = batch % y.ne[2], i3 = batch / y.ne[2], last = y.ne[1] - 1;
    const u8* base = row(a, 0, i2 / max(y.ne[2] / a.ne[2], 1), i3 / max(y.ne[3] / a.ne[3], 1));
    mma_tile<T, SIZE, SIZE>(
        node, base, m, {blockIdx.x % parts, parts}, [&](u32 c) { return batch * b.ne[1] + min(first + c, last); },
        [&](u32 c) { return first + c <= last ? row(y, first + c, i2, i3) : nullptr; });
}

#define MAKE_SMALL(T) \
    KERNEL __launch_bounds__(128) mul_mat_##T##_64(const Node node) { mul_mat<T, 64>(node); }
MAKE_SMALL(F16)
FOR_EVERY_BLOCK(MAKE_SMALL)

// Cards of 7.5 have no room for large ones, and no bf16.
#if __CUDA_ARCH__ >= 800
#define MAKE_LARGE(T) \
    KERNEL __launch_bounds__(256) mul_mat_##T##_128(const Node node) { mul_mat<T, 128>(node); }
MAKE_SMALL(BF16) MAKE_LARGE(F16) MAKE_LARGE(BF16)
FOR_EVERY_BLOCK(MAKE_LARGE)
#endif
#endif
