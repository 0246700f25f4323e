// MUL_MAT with few columns: a block for some rows of weights, which are read once for all of its columns. Its threads share the length of the rows; then
// the block adds up what they have.
//
// Products of the same columns with weights of one type can be one launch, two of them with the gated unit that they are for, and one with the
// norm of its result.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"
#include "staged.cuh"
#include "columns.cuh"
#include "activations.cuh"
#include "gated.cuh"
#include "norm.cuh"

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
INLINE Part part_of(const Tensor& a, const Tensor& y, u32 block) {
    u32 across = (y.ne[0] + ROWS - 1) / ROWS;
    // Without more columns and batches there is nothing to divide, which takes longer than a short row.
    if (block < across) {
        return {block * ROWS, 0, 0, 0, 0, 0};
    }
    u32 down = (y.ne[1] + COLUMNS - 1) / COLUMNS, batch = block / across / down;
    u32 i2 = batch % y.ne[2], i3 = batch / y.ne[2];
    // Extents of 0 stand for weights that are not read.
    u32 repeats2 = max(y.ne[2] / max(a.ne[2], 1), 1), repeats3 = max(y.ne[3] / max(a.ne[3], 1), 1);
    return {block % across * ROWS, block / across % down * COLUMNS, i2, i3, i2 / repeats2, i3 / repeats3};
}

// Rows of weights, `m` the first. What is behind the last row stands for the last.
template <u32 ROWS>
INLINE void find_rows(const Tensor& a, const Tensor& y, Part p, const u8** rows) {
    const u8* first = row(a, 0, p.a2, p.a3);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        rows[r] = first + min(p.m + r, y.ne[0] - 1) * a.nb[1];
    }
}

// Adds up the sums of all threads: thread i, if there are so many sums, has sum i as `of(i)`, and may ask for others.
template <u32 COUNT>
struct Sums {
    float (*of_warps)[COUNT];

    INLINE float of(u32 i) const {
        float sum = of_warps[0][i];
        for (u32 w = 1; w < blockDim.x / WARP; w++) {
            sum += of_warps[w][i];
        }
        return sum;
    }
};

template <u32 COUNT>
INLINE Sums<COUNT> add_up(float (&sums)[COUNT]) {
    __shared__ float of_warps[MOST_WARPS][COUNT];
    u32 lane = threadIdx.x % WARP;
    float sum = add_lanes<COUNT, WARP>(sums);
    if (lane < COUNT) {
        of_warps[threadIdx.x / WARP][lane] = sum;
    }
    __syncthreads();
    return {of_warps};
}

// Writes the results, with what is added to them.
template <u32 ROWS, u32 COLUMNS>
INLINE void write(const Node& node, Part p, float (&sums)[ROWS * COLUMNS]) {
    const Tensor &y = node.t[RESULT], &added = node.t[2];
    Sums<ROWS * COLUMNS> all = add_up(sums);
    u32 m = p.m + threadIdx.x / COLUMNS, n = p.n + threadIdx.x % COLUMNS;
    if (threadIdx.x >= ROWS * COLUMNS || m >= y.ne[0] || n >= y.ne[1]) {
        return;
    }
    float sum = all.of(threadIdx.x);
    if (added.at != 0) {
        sum += read_f32(row(added, n % added.ne[1], p.i2 % added.ne[2], p.i3 % added.ne[3]) + u64(m % added.ne[0]) * added.nb[0]);
    }
    write_f32(row(y, n, p.i2, p.i3) + u64(m) * 4, sum);
}

// Those of rows of blocks with one column. Where a block has a warp for each window of each row, as for products of few rows, a warp takes one of them.
template <int T, u32 ROWS>
INLINE void multiply_column(const u8* const (&rows)[ROWS], const u8* column, u32 n, float (&sums)[ROWS]) {
    u32 warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    if (warps < ROWS * windows_of<T>(n)) {
        multiply_staged<T, ROWS>(rows, column, n, warp, {warp, warps}, sums);
        return;
    }
    // By bits: of a choice between pointers the compiler makes a table in local memory.
    u64 at = 0;
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        at |= u64(rows[r]) & -u64(warp % ROWS == r);
    }
    const u8* mine[1] = {(const u8*)at};
    float sum[1] = {};
    multiply_staged<T, 1>(mine, column, n, warp, {warp / ROWS, warps / ROWS}, sum);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        sums[r] = warp % ROWS == r ? sum[0] : 0.0f;
    }
}

// The sums of this thread, of rows of weights with columns: of elements; of blocks with columns that quantize.cu or others have made.
template <int T, u32 ROWS, u32 COLUMNS>
INLINE void multiply_columns(const Node& node, Part p, const u8* const (&rows)[ROWS], float (&sums)[ROWS * COLUMNS]) {
    const Tensor &b = node.t[1], &y = node.t[RESULT];
    const u8* columns[COLUMNS];
#pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) {
        u32 n = min(p.n + c, y.ne[1] - 1);
        if constexpr (T > I32) {
            columns[c] = node.table + (n + y.ne[1] * (p.i2 + y.ne[2] * p.i3)) * packed_bytes(b.ne[0]);
        } else {
            columns[c] = row(b, n, p.i2, p.i3);
        }
    }
    if constexpr (T > I32 && COLUMNS == 1) {
        multiply_column<T, ROWS>(rows, columns[0], b.ne[0], sums);
    } else if constexpr (T > I32) {
        multiply<T, ROWS, COLUMNS>(rows, columns, b.ne[0], threadIdx.x, blockDim.x, sums);
    } else {
        Wide wide = wide_of(node);
        if (wide.weights && wide.columns) {
            multiply<T, ROWS, COLUMNS, true>(rows, columns, b.ne[0], threadIdx.x, blockDim.x, sums);
        } else {
            multiply<T, ROWS, COLUMNS, false>(rows, columns, b.ne[0], threadIdx.x, blockDim.x, sums);
        }
    }
}

template <int T, u32 ROWS, u32 COLUMNS>
INLINE void mul_mat_vec(const Node& node, u32 block) {
    const Tensor &a = node.t[0], &y = node.t[RESULT];
    Part p = part_of<ROWS, COLUMNS>(a, y, block);
    const u8* rows[ROWS];
    find_rows<ROWS>(a, y, p, rows);
    float sums[ROWS * COLUMNS] = {};
    multiply_columns<T, ROWS, COLUMNS>(node, p, rows, sums);
    write<ROWS, COLUMNS>(node, p, sums);
}

// Products of the same columns, of one batch; what is behind the last one stands for it.
struct Products {
    Node of[3];
};

INLINE Tensor either(bool first, const Tensor& a, const Tensor& b) {
    Tensor t;
    t.at = first ? a.at : b.at;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        t.ne[i] = first ? a.ne[i] : b.ne[i];
        t.nb[i] = first ? a.nb[i] : b.nb[i];
    }
    return t;
}

// Blocks of the first product come first. What the products share is that of the first.
template <int T, u32 ROWS, u32 COLUMNS>
INLINE void mul_mat_vec_many(const Products& products) {
    Node node = products.of[0];
    u32 block = blockIdx.x;
#pragma unroll
    for (u32 i = 1; i < 3; i++) {
        u32 across = (node.t[RESULT].ne[0] + ROWS - 1) / ROWS;
        bool is_here = block < across;
        const Node& next = products.of[i];
        block -= is_here ? 0 : across;
        node.t[0] = either(is_here, node.t[0], next.t[0]);
        node.t[2] = either(is_here, node.t[2], next.t[2]);
        node.t[RESULT] = either(is_here, node.t[RESULT], next.t[RESULT]);
    }
    mul_mat_vec<T, ROWS, COLUMNS>(node, block);
}

// Rows of each of two products that a gated unit is of, and the blocks of 32 results.
const u32 GATED_ROWS = 2, GATED_BLOCKS = 32 / GATED_ROWS;

// Two products of the same columns, and the gated unit of them. The table of the second are zeros, one for each 32 results.
struct Gated {
    Node gate, up, unit;
};

// Once all of 32 results are there, leaves them as signed bytes: by the last of their blocks, which counts them from 0 again.
template <u32 COLUMNS>
INLINE void pack_gated(const Gated& gated, u32 m) {
    const Tensor& y = gated.unit.t[RESULT];
    u32 lane = threadIdx.x, begin = m / 32 * 32, count = 0;
    u32* counter = (u32*)gated.up.table + m / 32;
    __threadfence();
    __syncwarp();
    if (lane == 0) {
        count = atomicAdd(counter, 1) + 1;
    }
    if (__shfl_sync(ALL_LANES, count, 0) < GATED_BLOCKS) {
        return;
    }
    __threadfence();
    if (lane == 0) {
        *counter = 0;
    }
    for (u32 n = 0; n < y.ne[1]; n++) {
        // What other blocks have written is not in this one's cache.
        float x = __ldcg((const float*)row(y, n, 0, 0) + begin + lane);
        quantize_one(gated.unit.table + n * packed_bytes(y.ne[0]), y.ne[0], begin + lane, x);
    }
}

template <int T, u32 COLUMNS>
INLINE void mul_mat_vec_gated(const Gated& gated) {
    const Tensor &y = gated.unit.t[RESULT];
    Part p = {blockIdx.x * GATED_ROWS, 0, 0, 0, 0, 0};
    constexpr u32 HALF = GATED_ROWS * COLUMNS;
    const u8* rows[2 * GATED_ROWS];
    find_rows<GATED_ROWS>(gated.gate.t[0], y, p, rows);
    find_rows<GATED_ROWS>(gated.up.t[0], y, p, rows + GATED_ROWS);
    float sums[2 * HALF] = {};
    multiply_columns<T, 2 * GATED_ROWS, COLUMNS>(gated.gate, p, rows, sums);
    Sums<2 * HALF> all = add_up(sums);
    u32 m = p.m + threadIdx.x / COLUMNS, n = threadIdx.x % COLUMNS;
    if (threadIdx.x >= WARP) {
        return;
    }
    if (threadIdx.x < HALF && m < y.ne[0] && n < y.ne[1]) {
        write_f32(row(y, n, 0, 0) + u64(m) * 4, gated_unit(gated.unit, all.of(threadIdx.x), all.of(HALF + threadIdx.x)));
    }
    if (gated.unit.p[PACKED] != 0) {
        pack_gated<COLUMNS>(gated, p.m);
    }
}

// Fours of a normed row that a thread has on their way at once: more of them would take registers from the product.
const u32 NORM_TOGETHER = 4;

// A product with one column, what may be added to it, and the norm of that. The table of `count` is one zero.
struct ProductAndNorm {
    Node product, norm, count;
};

// Whether all other blocks have done what they did before they asked. Who asks last counts them from 0 again.
INLINE bool is_last_block(u32* counter) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before = atomicAdd(counter, 1);
    }
    __syncthreads();
    if (before + 1 < gridDim.x) {
        return false;
    }
    __threadfence();
    if (threadIdx.x == 0) {
        *counter = 0;
    }
    return true;
}

template <int T, u32 ROWS>
INLINE void mul_mat_vec_normed(const ProductAndNorm& normed) {
    mul_mat_vec<T, ROWS, 1>(normed.product, blockIdx.x);
    if (is_last_block((u32*)normed.count.table)) {
        norm_row<NORM_TOGETHER, true>(normed.norm, 0);
    }
}

// The kernels of a type, named by columns; each type has a file, since the driver compiles a file as a whole. With more rows for a block columns are read
// less often, with fewer there are more blocks.
#define MAKE_OF(T, ROWS, COLUMNS) \
    KERNEL mul_mat_vec_##T##_##COLUMNS(const Node node) { mul_mat_vec<T, ROWS, COLUMNS>(node, blockIdx.x); }

#define MAKE_ONE(T, ROWS) \
    MAKE_OF(T, ROWS, 1) \
    KERNEL mul_mat_vec_##T##_1_many(const Products products) { mul_mat_vec_many<T, ROWS, 1>(products); } \
    KERNEL mul_mat_vec_##T##_1_gated(const Gated gated) { mul_mat_vec_gated<T, 1>(gated); } \
    KERNEL mul_mat_vec_##T##_1_normed(const ProductAndNorm normed) { mul_mat_vec_normed<T, ROWS>(normed); }

#define MAKE_ELEMENT(T) MAKE_ONE(T, 4) MAKE_OF(T, 4, 2) MAKE_OF(T, 4, 4) MAKE_OF(T, 4, 8)
#define MAKE_BLOCK(T) MAKE_ONE(T, 4) MAKE_OF(T, 2, 2) MAKE_OF(T, 4, 4) MAKE_OF(T, 4, 8)
