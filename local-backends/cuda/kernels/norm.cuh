// RMS_NORM, NORM and L2_NORM of a row, which may be multiplied with another one, by all threads of a block.

const u32 RMS_NORM = 0, NORM = 1, L2_NORM = 2;
// The parameters that say how many lanes share a row, and whether it is multiplied.
const u32 NORM_LANES = 3, SCALED = 4;

// A row that is normed, and how: threads of a block are several lanes each if it has more lanes than threads. What a thread reads for TOGETHER of them is
// on its way at once. FRESH: other blocks have written the row in this launch, so that it is not in this one's cache; it is wide then, and for RMS_NORM.
template <u32 TOGETHER, bool FRESH>
struct Normed {
    const u8* from;
    u32 n, lanes;
    // Rows begin at multiples of 16 bytes, and have whole fours.
    bool wide;

    INLINE Four four_at(u32 i) const {
        if constexpr (FRESH) {
            float4 v = __ldcg((const float4*)(from + u64(i) * 4));
            return {v.x, v.y, v.z, v.w};
        } else {
            return quad_wide<F32>(from, i, n, wide);
        }
    }

    // What `add` adds up of all fours, in the same order whatever threads a block has.
    template <typename F>
    INLINE float sum(F add) const {
        __syncthreads();
        for (u32 first = threadIdx.x; first < lanes; first += TOGETHER * blockDim.x) {
            Four fours[TOGETHER];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) {
                u32 lane = first + j * blockDim.x;
                fours[j] = lane < lanes && 4 * lane < n ? four_at(4 * lane) : four(0.0f);
            }
#pragma unroll
            for (u32 j = 0; j < TOGETHER; j++) {
                u32 lane = first + j * blockDim.x;
                if (lane < lanes) {
                    float of_lane = 0.0f;
                    add(of_lane, 4 * lane, fours[j]);
                    for (u32 i = 4 * (lane + lanes); i < n; i += 4 * lanes) {
                        add(of_lane, i, four_at(i));
                    }
                    places[lane / WARP] = sum_of_warp(of_lane);
                }
            }
        }
        __syncthreads();
        u32 lane = threadIdx.x % WARP;
        return sum_of_warp(lane < lanes / WARP ? places[lane] : 0.0f);
    }
};

template <u32 TOGETHER, bool FRESH>
INLINE void norm_row(const Node& node, u32 place) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    u32 n = x.ne[0], kind = FRESH ? RMS_NORM : node.p[1];
    Normed<TOGETHER, FRESH> row_of = {row(x, place), n, node.p[NORM_LANES], FRESH || node.p[2] != 0};
    const u8* scale = node.t[1].at;
    u8* to = row(y, place);
    float mean = 0.0f, eps = number_param(node, 0);
    if (kind == NORM) {
        mean = row_of.sum([](float& sum, u32, Four v) { sum += v.x + v.y + v.z + v.w; }) / n;
    }
    float squares = row_of.sum([=](float& sum, u32 i, Four v) {
        float of_four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float apart = of_four[j] - mean;
            sum += i + j < n ? apart * apart : 0.0f;
        }
    });
    float divisor = kind == L2_NORM ? fmaxf(sqrtf(squares), eps) : sqrtf(squares / n + eps);
    // Whole warps pack, also where only some of their lanes have elements.
    u32 end = node.p[PACKED] != 0 ? (n + 4 * WARP - 1) / (4 * WARP) * 4 * WARP : n;
    for (u32 first = 4 * threadIdx.x; first < end; first += 4 * TOGETHER * blockDim.x) {
        Four fours[TOGETHER];
#pragma unroll
        for (u32 j = 0; j < TOGETHER; j++) {
            u32 i = first + 4 * j * blockDim.x;
            fours[j] = i < n ? row_of.four_at(i) : four(mean);
        }
#pragma unroll
        for (u32 j = 0; j < TOGETHER; j++) {
            u32 i = first + 4 * j * blockDim.x;
            if (i >= end) {
                break;
            }
            Four v = fours[j], s = node.p[SCALED] != 0 && i < n ? quad<F32>(scale, i, n) : four(1.0f);
            Four result = {(v.x - mean) / divisor * s.x, (v.y - mean) / divisor * s.y, (v.z - mean) / divisor * s.z, (v.w - mean) / divisor * s.w};
            if (row_of.wide && i < n) {
                *(float4*)(to + u64(i) * 4) = {result.x, result.y, result.z, result.w};
            } else {
                float results[4] = {result.x, result.y, result.z, result.w};
                for (u32 k = 0; k < 4 && i + k < n; k++) {
                    write_f32(to + u64(i + k) * 4, results[k]);
                }
            }
            if (node.p[PACKED] != 0) {
                quantize_four(node.table + place * packed_bytes(n), n, i, result);
            }
        }
    }
}
