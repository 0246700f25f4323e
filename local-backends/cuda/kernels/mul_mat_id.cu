// compute: 61 80
// MUL_MAT_ID: a warp for some rows of an expert and one column.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"
#include "staged.cuh"
#include "columns.cuh"

// Warps of a block, and rows of blocks for each.
const u32 WARPS = 4, ROWS_OF_BLOCKS = 4;

// Half as many warps where windows (staged.cuh) are twice as long: shared memory has room for no more.
template <int T>
constexpr u32 WARPS_OF = T == MXFP4 ? WARPS / 2 : WARPS;

// Where a warp's rows and its column are.
struct Part {
    u32 m, slot, token;
    int expert;
};

// `false` if there is nothing to do. A wrong expert is told once for a block.
template <int T, int ROWS>
INLINE bool find_part(const Node& node, Part& p) {
    const Tensor &a = node.t[0], &ids = node.t[2], &y = node.t[RESULT];
    constexpr u32 warps = WARPS_OF<T>;
    u32 across = (y.ne[0] + warps * ROWS - 1) / (warps * ROWS);
    p.m = (blockIdx.x % across * warps + threadIdx.x / WARP) * ROWS;
    p.slot = blockIdx.x / across % y.ne[1];
    p.token = blockIdx.x / across / y.ne[1];
    p.expert = read_i32(ids.at + p.slot * ids.nb[0] + p.token * ids.nb[1]);
    if (u32(p.expert) < a.ne[2]) {
        return p.m < y.ne[0];
    }
    if (threadIdx.x == 0) {
        wrong(node, EXPERT, p.expert, a.ne[2]);
    }
    return false;
}

// Of elements, a row for each warp.
template <int T>
INLINE void mul_mat_id(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    Part p;
    if (!find_part<T, 1>(node, p)) {
        return;
    }
    const u8 *columns[1] = {row(b, p.slot % b.ne[1], p.token, 0)}, *rows[1] = {row(a, p.m, p.expert, 0)};
    float sums[1] = {};
    Wide wide = wide_of(node);
    u32 lane = threadIdx.x % WARP;
    if (wide.weights && wide.columns) {
        multiply<T, 1, 1, true>(rows, columns, a.ne[0], lane, WARP, sums);
    } else {
        multiply<T, 1, 1, false>(rows, columns, a.ne[0], lane, WARP, sums);
    }
    float sum = sum_of_warp(sums[0]);
    if (lane == 0) {
        write_f32(row(y, p.slot, p.token, 0) + u64(p.m) * 4, sum);
    }
}

// Of blocks, with columns that quantize.cu has made.
template <int T, int ROWS>
INLINE void mul_mat_id_packed(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    Part p;
    if (!find_part<T, ROWS>(node, p)) {
        return;
    }
    const u8* column = node.table + (p.slot % b.ne[1] + b.ne[1] * p.token) * packed_bytes(b.ne[0]);
    const u8* rows[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        // What is behind the last row stands for the last.
        rows[r] = row(a, min(p.m + r, y.ne[0] - 1), p.expert, 0);
    }
    float sums[ROWS] = {};
    // Each warp takes all windows of its rows.
    multiply_staged<T, ROWS>(rows, column, b.ne[0], threadIdx.x / WARP, {0, 1}, sums);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        float sum = sum_of_warp(sums[r]);
        if (threadIdx.x % WARP == 0 && p.m + r < y.ne[0]) {
            write_f32(row(y, p.slot, p.token, 0) + u64(p.m + r) * 4, sum);
        }
    }
}

#define MAKE(T) \
    KERNEL mul_mat_id_##T(const Node node) { mul_mat_id<T>(node); }
FOR_EVERY_ELEMENT(MAKE)

#define MAKE_PACKED(T) \
    KERNEL mul_mat_id_##T(const Node node) { mul_mat_id_packed<T, ROWS_OF_BLOCKS>(node); }
FOR_EVERY_BLOCK(MAKE_PACKED)
