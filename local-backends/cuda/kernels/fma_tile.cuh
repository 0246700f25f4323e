// A tile of a product by multiply-adds: 64 rows with 64 columns by a block of 256, 32 elements of which are in shared memory at a time.

const u32 TILE = 64, FMA_DEPTH = 32;

// By element, then by row or column. Four are behind each, so that lanes write to different banks.
__shared__ float tile_a[FMA_DEPTH][TILE + 4], tile_b[FMA_DEPTH][TILE + 4];

INLINE void put(float (&tile)[FMA_DEPTH][TILE + 4], u32 k, u32 at, Four v) {
    tile[k][at] = v.x;
    tile[k + 1][at] = v.y;
    tile[k + 2][at] = v.z;
    tile[k + 3][at] = v.w;
}

template <int T>
INLINE void fma_tile(const Node& node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    u32 across = (y.ne[0] + TILE - 1) / TILE, down = (y.ne[1] + TILE - 1) / TILE;
    u32 m = blockIdx.x % across * TILE, first = blockIdx.x / across % down * TILE, batch = blockIdx.x / across / down;
    u32 i2 = batch % y.ne[2], i3 = batch / y.ne[2], n = a.ne[0];
    // Extents of 0 stand for weights that are not read.
    u32 repeats2 = max(y.ne[2] / max(a.ne[2], 1), 1), repeats3 = max(y.ne[3] / max(a.ne[3], 1), 1);
    // A thread brings two fours of a row and of a column; what is behind the last one stands for the last.
    u32 brought = threadIdx.x / 4, begin = threadIdx.x % 4 * 4;
    const u8* weights = row(a, min(m + brought, y.ne[0] - 1), i2 / repeats2, i3 / repeats3);
    const u8* column = row(b, min(first + brought, y.ne[1] - 1), i2, i3);
    bool wide_a = node.p[1] != 0, wide_b = node.p[0] != 0;
    u32 my_row = threadIdx.x % 16 * 4, my_column = threadIdx.x / 16 * 4;
    Four sums[4] = {four(0.0f), four(0.0f), four(0.0f), four(0.0f)};
    for (u32 k = 0; k < n; k += FMA_DEPTH) {
        __syncthreads();
        for (u32 i = begin; i < FMA_DEPTH; i += FMA_DEPTH / 2) {
            put(tile_a, i, brought, k + i < n ? quad_wide<T>(weights, k + i, n, wide_a) : four(0.0f));
            put(tile_b, i, brought, k + i < n ? quad_wide<F32>(column, k + i, n, wide_b) : four(0.0f));
        }
        __syncthreads();
#pragma unroll 4
        for (u32 i = 0; i < FMA_DEPTH; i++) {
            float4 w = *(const float4*)&tile_a[i][my_row], x = *(const float4*)&tile_b[i][my_column];
            Four rows = {w.x, w.y, w.z, w.w};
            add_scaled(sums[0], x.x, rows);
            add_scaled(sums[1], x.y, rows);
            add_scaled(sums[2], x.z, rows);
            add_scaled(sums[3], x.w, rows);
        }
    }
#pragma unroll
    for (u32 c = 0; c < 4; c++) {
        float results[4] = {sums[c].x, sums[c].y, sums[c].z, sums[c].w};
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            if (m + my_row + r < y.ne[0] && first + my_column + c < y.ne[1]) {
                write_f32(row(y, first + my_column + c, i2, i3) + u64(m + my_row + r) * 4, results[r]);
            }
        }
    }
}
