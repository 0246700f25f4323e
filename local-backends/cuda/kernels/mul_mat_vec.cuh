// MUL_MAT with few columns: a block for some rows of weights, which are read once for all of its columns. Its threads share the length of the
// rows: neighbours read neighbouring words. Then the block adds up what they have.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"
#include "packed.cuh"
#include "columns.cuh"

// Most warps of a block.
const u32 MOST_WARPS = 8;

// Where a block's rows and columns are.
struct Part {
    // The first of each.
    u32 m, n;
    // Its batch of columns, and that of weights.
    u32 i2, i3, a2, a3;
};

template <u32 ROWS, u32 COLUMNS>
INLINE Part part_of(const Tensor& a, const Tensor& y) {
    u32 across = (y.ne[0] + ROWS - 1) / ROWS;
    // Without more columns and batches there is nothing to divide, which takes longer than a short row.
    if (blockIdx.x < across) {
        return {blockIdx.x * ROWS, 0, 0, 0, 0, 0};
    }
    u32 down = (y.ne[1] + COLUMNS - 1) / COLUMNS, batch = blockIdx.x / across / down;
    u32 i2 = batch % y.ne[2], i3 = batch / y.ne[2];
    // Extents of 0 stand for weights that are not read.
    u32 repeats2 = max(y.ne[2] / max(a.ne[2], 1), 1), repeats3 = max(y.ne[3] / max(a.ne[3], 1), 1);
    return {blockIdx.x % across * ROWS, blockIdx.x / across % down * COLUMNS, i2, i3, i2 / repeats2, i3 / repeats3};
}

// Rows of weights. What is behind the last row stands for the last.
template <u32 ROWS>
INLINE void find_rows(const Tensor& a, const Tensor& y, Part p, const u8* (&rows)[ROWS]) {
    const u8* first = row(a, 0, p.a2, p.a3);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        rows[r] = first + min(p.m + r, y.ne[0] - 1) * a.nb[1];
    }
}

// Adds up the sums of all threads, and writes the results, with what is added to them.
template <u32 ROWS, u32 COLUMNS>
INLINE void write(const Node& node, Part p, float (&sums)[ROWS * COLUMNS]) {
    const Tensor &y = node.t[RESULT], &added = node.t[2];
    constexpr u32 COUNT = ROWS * COLUMNS;
    __shared__ float of_warps[MOST_WARPS][COUNT];
    u32 lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    float sum = add_lanes<COUNT, WARP>(sums);
    if (lane < COUNT) {
        of_warps[threadIdx.x / WARP][lane] = sum;
    }
    __syncthreads();
    u32 m = p.m + threadIdx.x / COLUMNS, n = p.n + threadIdx.x % COLUMNS;
    if (threadIdx.x >= COUNT || m >= y.ne[0] || n >= y.ne[1]) {
        return;
    }
    for (u32 i = 1; i < warps; i++) {
        sum += of_warps[i][threadIdx.x];
    }
    if (added.at != 0) {
        sum += read_f32(row(added, n % added.ne[1], p.i2 % added.ne[2], p.i3 % added.ne[3]) + u64(m % added.ne[0]) * added.nb[0]);
    }
    write_f32(row(y, n, p.i2, p.i3) + u64(m) * 4, sum);
}

// Of elements.
template <int T, u32 ROWS, u32 COLUMNS>
INLINE void mul_mat_vec(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    Part p = part_of<ROWS, COLUMNS>(a, y);
    const u8 *columns[COLUMNS], *rows[ROWS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        columns[c] = row(b, min(p.n + c, y.ne[1] - 1), p.i2, p.i3);
    }
    find_rows(a, y, p, rows);
    float sums[ROWS * COLUMNS] = {};
    Wide wide = wide_of(node);
    if (wide.weights && wide.columns) {
        multiply<T, ROWS, COLUMNS, true>(rows, columns, b.ne[0], threadIdx.x, blockDim.x, sums);
    } else {
        multiply<T, ROWS, COLUMNS, false>(rows, columns, b.ne[0], threadIdx.x, blockDim.x, sums);
    }
    write<ROWS, COLUMNS>(node, p, sums);
}

// Of blocks, with columns that quantize.cu has made.
template <int T, u32 ROWS, u32 COLUMNS>
INLINE void mul_mat_vec_packed(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    Part p = part_of<ROWS, COLUMNS>(a, y);
    const u8 *columns[COLUMNS], *rows[ROWS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        u32 place = min(p.n + c, y.ne[1] - 1) + y.ne[1] * (p.i2 + y.ne[2] * p.i3);
        columns[c] = node.table + place * packed_bytes(b.ne[0]);
    }
    find_rows(a, y, p, rows);
    float sums[ROWS * COLUMNS] = {};
    multiply<T, ROWS, COLUMNS>(rows, columns, b.ne[0], threadIdx.x, blockDim.x, sums);
    write<ROWS, COLUMNS>(node, p, sums);
}

// The kernels of a type, named by columns; each type has a file, since the driver compiles a file as a whole. Few rows for one or two columns make
// many blocks; more columns are read less often for more rows.
#define MAKE_ELEMENT(T) \
    KERNEL mul_mat_vec_##T##_1(const Node node) { mul_mat_vec<T, 4, 1>(node); } \
    KERNEL mul_mat_vec_##T##_2(const Node node) { mul_mat_vec<T, 4, 2>(node); } \
    KERNEL mul_mat_vec_##T##_4(const Node node) { mul_mat_vec<T, 4, 4>(node); } \
    KERNEL mul_mat_vec_##T##_8(const Node node) { mul_mat_vec<T, 4, 8>(node); }

#define MAKE_BLOCK(T) \
    KERNEL mul_mat_vec_##T##_1(const Node node) { mul_mat_vec_packed<T, 2, 1>(node); } \
    KERNEL mul_mat_vec_##T##_2(const Node node) { mul_mat_vec_packed<T, 2, 2>(node); } \
    KERNEL mul_mat_vec_##T##_4(const Node node) { mul_mat_vec_packed<T, 4, 4>(node); } \
    KERNEL mul_mat_vec_##T##_8(const Node node) { mul_mat_vec_packed<T, 4, 8>(node); }
