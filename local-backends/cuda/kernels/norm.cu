// compute: 61
// RMS_NORM, NORM, L2_NORM: a block for each row, which may be multiplied with another one.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"

const u32 NORM = 1, L2_NORM = 2;
// The parameter that says that it is multiplied.
const u32 SCALED = 4;

KERNEL_OF(1024) norm(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    u32 n = x.ne[0], kind = node.p[1], step = 4 * blockDim.x;
    const u8 *from = row(x, blockIdx.x), *scale = node.t[1].at;
    u8* to = row(y, blockIdx.x);
    // Rows begin at multiples of 16 bytes, and have whole fours.
    bool wide = node.p[2] != 0;
    float mean = 0.0f, squares = 0.0f, eps = number_param(node, 0);
    if (kind == NORM) {
        for (u32 i = 4 * threadIdx.x; i < n; i += step) {
            Four v = quad_wide<F32>(from, i, n, wide);
            mean += v.x + v.y + v.z + v.w;
        }
        mean = sum_of(mean) / n;
    }
    for (u32 i = 4 * threadIdx.x; i < n; i += step) {
        Four v = quad_wide<F32>(from, i, n, wide);
        float of_four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float apart = of_four[j] - mean;
            squares += i + j < n ? apart * apart : 0.0f;
        }
    }
    squares = sum_of(squares);
    float divisor = kind == L2_NORM ? fmaxf(sqrtf(squares), eps) : sqrtf(squares / n + eps);
    // Whole warps pack, also where only some of their lanes have elements.
    u32 end = node.p[PACKED] != 0 ? (n + 4 * WARP - 1) / (4 * WARP) * 4 * WARP : n;
    for (u32 i = 4 * threadIdx.x; i < end; i += step) {
        Four v = i < n ? quad_wide<F32>(from, i, n, wide) : four(mean), s = four(1.0f);
        if (node.p[SCALED] != 0 && i < n) {
            s = quad<F32>(scale, i, n);
        }
        float results[4] = {(v.x - mean) / divisor * s.x, (v.y - mean) / divisor * s.y, (v.z - mean) / divisor * s.z, (v.w - mean) / divisor * s.w};
        if (wide && i < n) {
            *(float4*)(to + u64(i) * 4) = {results[0], results[1], results[2], results[3]};
        } else {
            for (u32 j = 0; j < 4 && i + j < n; j++) {
                write_f32(to + u64(i + j) * 4, results[j]);
            }
        }
        if (node.p[PACKED] != 0) {
            quantize_four(node.table + blockIdx.x * packed_bytes(n), n, i, {results[0], results[1], results[2], results[3]});
        }
    }
}
