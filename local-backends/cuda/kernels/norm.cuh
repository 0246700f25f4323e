// RMS_NORM, NORM and L2_NORM of a row, which may be multiplied with another one, by all threads of a block.

const u32 NORM = 1, L2_NORM = 2;
// The parameters that say how many lanes share a row, and whether it is multiplied.
const u32 NORM_LANES = 3, SCALED = 4;

// What all lanes have, added up in the same order whatever threads a block has: each of these is several lanes if there are more of them.
template <typename F>
INLINE float sum_of_lanes(u32 lanes, F of_lane) {
    __syncthreads();
    for (u32 lane = threadIdx.x; lane < lanes; lane += blockDim.x) {
        places[lane / WARP] = sum_of_warp(of_lane(lane));
    }
    __syncthreads();
    u32 lane = threadIdx.x % WARP;
    return sum_of_warp(lane < lanes / WARP ? places[lane] : 0.0f);
}

// Four elements of a row. Where other blocks have written it in this launch, it is not in this one's cache.
template <bool FRESH>
INLINE Four four_of_row(const u8* from, u32 i, u32 n, bool wide) {
    if constexpr (FRESH) {
        const float* at = (const float*)from + i;
        if (wide) {
            float4 v = __ldcg((const float4*)at);
            return {v.x, v.y, v.z, v.w};
        }
        return {__ldcg(at), i + 1 < n ? __ldcg(at + 1) : 0.0f, i + 2 < n ? __ldcg(at + 2) : 0.0f, i + 3 < n ? __ldcg(at + 3) : 0.0f};
    } else {
        return quad_wide<F32>(from, i, n, wide);
    }
}

template <bool FRESH>
INLINE void norm_row(const Node& node, u32 place) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    u32 n = x.ne[0], kind = node.p[1], lanes = node.p[NORM_LANES], step = 4 * lanes;
    const u8 *from = row(x, place), *scale = node.t[1].at;
    u8* to = row(y, place);
    // Rows begin at multiples of 16 bytes, and have whole fours.
    bool wide = node.p[2] != 0;
    float mean = 0.0f, eps = number_param(node, 0);
    if (kind == NORM) {
        mean = sum_of_lanes(lanes, [&](u32 lane) {
            float sum = 0.0f;
            for (u32 i = 4 * lane; i < n; i += step) {
                Four v = four_of_row<FRESH>(from, i, n, wide);
                sum += v.x + v.y + v.z + v.w;
            }
            return sum;
        }) / n;
    }
    float squares = sum_of_lanes(lanes, [&](u32 lane) {
        float sum = 0.0f;
        for (u32 i = 4 * lane; i < n; i += step) {
            Four v = four_of_row<FRESH>(from, i, n, wide);
            float of_four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                float apart = of_four[j] - mean;
                sum += i + j < n ? apart * apart : 0.0f;
            }
        }
        return sum;
    });
    float divisor = kind == L2_NORM ? fmaxf(sqrtf(squares), eps) : sqrtf(squares / n + eps);
    // Whole warps pack, also where only some of their lanes have elements.
    u32 end = node.p[PACKED] != 0 ? (n + 4 * WARP - 1) / (4 * WARP) * 4 * WARP : n;
    for (u32 i = 4 * threadIdx.x; i < end; i += 4 * blockDim.x) {
        Four v = i < n ? four_of_row<FRESH>(from, i, n, wide) : four(mean), s = four(1.0f);
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
            quantize_four(node.table + place * packed_bytes(n), n, i, {results[0], results[1], results[2], results[3]});
        }
    }
}
