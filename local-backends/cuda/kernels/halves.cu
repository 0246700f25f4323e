// compute: 75 80
// Columns of a product as f16 or bf16, for mma_tile.cuh: a block for each column. Those of f16 are scaled by a power of two, so that the largest
// element is below 2^15: then none is too large.
#include "common.cuh"
#include "blocks.cuh"
#include "matrix.cuh"
#include "halves.cuh"

// Fours of a column that a thread keeps.
const u32 KEPT = 4;

INLINE Four finite(Four v) {
    return {isfinite(v.x) ? fabsf(v.x) : 0.0f, isfinite(v.y) ? fabsf(v.y) : 0.0f, isfinite(v.z) ? fabsf(v.z) : 0.0f,
            isfinite(v.w) ? fabsf(v.w) : 0.0f};
}

KERNEL halves(const Node node) {
    const Tensor& b = node.t[1];
    u32 n = b.ne[0], fours = padded_length(n) / 4;
    bool scales = node.p[2] == F16, wide = node.p[0] != 0;
    const u8* column = row(b, blockIdx.x);
    auto read = [&](u32 f) { return 4 * f < n ? quad_wide<F32>(column, 4 * f, n, wide) : four(0.0f); };
    Four kept[KEPT];
    float most = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        u32 f = threadIdx.x + i * blockDim.x;
        kept[i] = f < fours ? read(f) : four(0.0f);
    }
    if (scales) {
        for (u32 i = 0, f = threadIdx.x; f < fours; i++, f += blockDim.x) {
            Four v = finite(i == 0 ? kept[0] : i == 1 ? kept[1] : i == 2 ? kept[2] : i == 3 ? kept[3] : read(f));
            most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
        }
        most = max_of(most);
    }
    int exponent = most == 0.0f ? 0 : max(exponent_above(most) - 15, -100);
    float factor = power_of_two(-exponent);
    uint2* to = (uint2*)(node.table + u64(blockIdx.x) * fours * 8);
    auto write = [&](u32 f, Four v) {
        if (scales) {
            to[f] = {two_halves(v.x * factor, v.y * factor), two_halves(v.z * factor, v.w * factor)};
        } else {
            to[f] = {float_to_bfloat(v.x) | u32(float_to_bfloat(v.y)) << 16, float_to_bfloat(v.z) | u32(float_to_bfloat(v.w)) << 16};
        }
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        if (threadIdx.x + i * blockDim.x < fours) {
            write(threadIdx.x + i * blockDim.x, kept[i]);
        }
    }
    for (u32 f = threadIdx.x + KEPT * blockDim.x; f < fours; f += blockDim.x) {
        write(f, read(f));
    }
    // What parts of sums are added to.
    if (node.p[3] > 1) {
        float* result = (float*)row(node.t[RESULT], blockIdx.x);
        for (u32 i = threadIdx.x; i < node.t[RESULT].ne[0]; i += blockDim.x) {
            result[i] = 0.0f;
        }
    }
    if (threadIdx.x == 0) {
        column_scales(node, rows_of(b), n)[blockIdx.x] = power_of_two(exponent);
    }
}
