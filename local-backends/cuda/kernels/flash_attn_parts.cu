// compute: 61
// The second pass of FLASH_ATTN_EXT where keys were divided: a block for a query and a head, which puts the parts together; a warp for some parts.
#include "common.cuh"
#include "blocks.cuh"
#include "quantized.cuh"
#include "attention.cuh"

const u32 MOST_PARTS = 128, WARPS = 8;

__shared__ float weights[MOST_PARTS];
__shared__ float4 of_warps[WARPS][WARP];

KERNEL flash_attn_parts(const Node node) {
    const Tensor &q = node.t[0], &v = node.t[2], &y = node.t[RESULT];
    u32 g = blockIdx.x, head = g % q.ne[2], i = g / q.ne[2], dv = v.ne[0], length = (dv + 5) / 4 * 4, parts = node.p[4];
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float* from = parts_of(node) + u64(g) * parts * length;
    float* to = (float*)row(y, head, i, 0);
    bool is_part = threadIdx.x < parts;
    const float* numbers = from + (is_part ? threadIdx.x : 0) * length + dv;
    float of_part = is_part ? numbers[0] : minus_infinity(), weighed = is_part ? numbers[1] : 0.0f, most = max_of(of_part);
    float weight = of_part == minus_infinity() ? 0.0f : expf(of_part - most), sum = sum_of(weight == 0.0f ? 0.0f : weight * weighed);
    if (is_part) {
        weights[threadIdx.x] = weight;
    }
    for (u32 begin = 0; begin < dv; begin += 4 * WARP) {
        u32 e = begin + 4 * lane;
        float4 result = {0.0f, 0.0f, 0.0f, 0.0f};
        __syncthreads();
#pragma unroll 4
        for (u32 p = warp; p < parts; p += WARPS) {
            // Parts begin at multiples of four, and have two numbers behind the last value.
            float w = weights[p];
            float4 x = e < dv ? *(const float4*)(from + p * length + e) : result;
            if (w != 0.0f) {
                result.x += w * x.x;
                result.y += w * x.y;
                result.z += w * x.z;
                result.w += w * x.w;
            }
        }
        of_warps[warp][lane] = result;
        __syncthreads();
        const float* results = (const float*)of_warps;
        u32 j = threadIdx.x;
        if (j < 4 * WARP && begin + j < dv) {
            float all = 0.0f;
            for (u32 w = 0; w < WARPS; w++) {
                all += results[w * 4 * WARP + j];
            }
            float x = sum > 0.0f ? all / sum : 0.0f;
            to[begin + j] = x;
            // Results are of whole warps then.
            if (node.p[BEHIND_PACKED] != 0) {
                u32 n = dv * q.ne[2];
                quantize_one(node.table + i * packed_bytes(n), n, head * dv + begin + j, x);
            }
        }
    }
}
