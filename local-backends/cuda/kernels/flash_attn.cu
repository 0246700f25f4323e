// compute: 61
// FLASH_ATTN_EXT: a warp for a query, some heads that share keys and values, and a part of the keys that are seen. It goes through them 32 at a
// time, with a running softmax. The cache may be paged. Where the keys are divided, flash_attn_parts.cu puts the parts together.
#include "common.cuh"
#include "blocks.cuh"
#include "attention.cuh"

// A type that is known when the kernel runs.
const int ANY = -1;

template <int T>
INLINE Four quad_or(int type, const u8* row, u32 i, u32 n, bool wide) {
    if constexpr (T == ANY) {
        return quad_of(type, row, i, n);
    } else {
        return quad_wide<T>(row, i, n, wide);
    }
}

// The running softmax of a head: the largest logit, the sum of weights.
struct Sum {
    float most, sum;
};

// A key's logit becomes its weight; returns what is left of the weights before.
INLINE float weigh(Sum& s, float& logit) {
    float higher = fmaxf(s.most, max_of_warp(logit));
    logit = logit == minus_infinity() ? 0.0f : expf(logit - higher);
    float kept = s.most == minus_infinity() ? 0.0f : expf(s.most - higher);
    s.sum = s.sum * kept + sum_of_warp(logit);
    s.most = higher;
    return kept;
}

// The result of a head, or of a part of its keys: the largest logit, the sum of weights, and the values times their weights.
template <u32 FOURS>
INLINE void write(const Node& node, u32 i, u32 head, u32 part, Sum s, const Four (&result)[FOURS]) {
    u32 heads = node.t[0].ne[2], dv = node.t[2].ne[0], parts = node.p[4], lane = threadIdx.x;
    u8* to = row(node.t[RESULT], head, i, 0);
    float over = s.sum;
    if (parts > 1) {
        u32 length = (dv + 5) / 4 * 4;
        to = (u8*)parts_of(node) + (u64(i * heads + head) * parts + part) * length * 4;
        over = 1.0f;
        if (lane == 0) {
            write_f32(to + dv * 4, s.most);
            write_f32(to + (dv + 1) * 4, s.sum);
        }
    }
#pragma unroll
    for (u32 f = 0; f < FOURS; f++) {
        u32 e = (f * WARP + lane) * 4;
        float results[4] = {result[f].x, result[f].y, result[f].z, result[f].w};
#pragma unroll
        for (u32 l = 0; l < 4; l++) {
            if (e + l < dv) {
                write_f32(to + (e + l) * 4, over > 0.0f ? results[l] / over : 0.0f);
            }
        }
    }
}

// A key's logits, one for each head.
template <int K, u32 HEADS, u32 FOURS>
INLINE void multiply(const Node& node, const Four (&query)[HEADS][FOURS], const u8* key, float added, float (&logits)[HEADS]) {
    u32 d = node.t[0].ne[0], heads = node.p[10];
    float sums[HEADS];
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        sums[h] = 0.0f;
    }
    for (u32 l = 0; 4 * l < d; l++) {
        Four four = quad_or<K>(node.p[5], key, 4 * l, d, node.p[8] != 0);
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            sums[h] += h < heads ? dot(query[h][l], four) : 0.0f;
        }
    }
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        logits[h] = capped(node, sums[h]) + added;
    }
}

// Adds the values of the keys at hand, one of each lane.
template <int V, u32 HEADS, u32 FOURS>
INLINE void add_values(const Node& node, u32 head_kv, u32 at, u32 count, const float (&weights)[HEADS], Four (&result)[HEADS][FOURS]) {
    const Tensor& v = node.t[2];
    u32 dv = v.ne[0], heads = node.p[10];
    for (u32 l = 0; l < count; l++) {
        u32 of = __shfl_sync(ALL_LANES, at, l);
        if (of == ~0u) {
            continue;
        }
        Four values[FOURS];
        const u8* value = row(v, of, head_kv, 0);
#pragma unroll
        for (u32 f = 0; f < FOURS; f++) {
            u32 e = (f * WARP + threadIdx.x) * 4;
            values[f] = e < dv ? quad_or<V>(node.p[6], value, e, dv, node.p[9] != 0) : four(0.0f);
        }
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            float w = __shfl_sync(ALL_LANES, weights[h], l);
            // What a mask hides may be no number.
            if (h < heads && w != 0.0f) {
#pragma unroll
                for (u32 f = 0; f < FOURS; f++) {
                    add_scaled(result[h][f], w, values[f]);
                }
            }
        }
    }
}

// With room for so many heads, and so many fours of a value for a lane; a key is no longer than those of all lanes.
template <int K, int V, u32 FOURS, u32 HEADS>
INLINE void flash_attn(const Node& node) {
    const Tensor &q = node.t[0], &k = node.t[1], &sinks = node.t[5];
    u32 block = node.p[3], parts = node.p[4], part = blockIdx.x % parts, lane = threadIdx.x, heads = node.p[10];
    u32 head = blockIdx.x / parts % (q.ne[2] / heads) * heads, i = blockIdx.x / parts / (q.ne[2] / heads);
    u32 d = q.ne[0], n_kv = k.ne[1], head_kv = head / (q.ne[2] / k.ne[2]);
    __shared__ Four query[HEADS][FOURS * WARP];
    Sum sums[HEADS];
    Four result[HEADS][FOURS];
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        for (u32 l = lane; 4 * l < d && h < heads; l += WARP) {
            query[h][l] = quad<F32>(row(q, i, head + h, 0), 4 * l, d);
        }
        // A sink is a key without a value.
        bool has_sink = sinks.at != 0 && part == 0 && h < heads;
        sums[h].most = has_sink ? read_f32(sinks.at + (head + h) * sinks.nb[0]) : minus_infinity();
        sums[h].sum = has_sink ? 1.0f : 0.0f;
#pragma unroll
        for (u32 f = 0; f < FOURS; f++) {
            result[h][f] = four(0.0f);
        }
    }
    __syncwarp();
    Seen s = seen(node, i, n_kv, block);
    // The part's keys: as many for each, in whole steps.
    u32 count = ((s.end - s.begin + parts - 1) / parts + WARP - 1) / WARP * WARP;
    s.begin = min(s.begin + part * count, s.end);
    s.end = min(s.begin + count, s.end);
    for (u32 begin = s.begin; begin < s.end; begin += WARP) {
        u32 j = begin + lane, at = j < s.end ? cache_row(node, j, s.column, n_kv, block) : ~0u;
        float weights[HEADS];
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            weights[h] = minus_infinity();
        }
        if (at != ~0u) {
            multiply<K>(node, query, row(k, at, head_kv, 0), masked(node, i, j), weights);
        }
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            if (h < heads) {
                float kept = weigh(sums[h], weights[h]);
#pragma unroll
                for (u32 f = 0; f < FOURS; f++) {
                    result[h][f] = scaled(result[h][f], kept, 0.0f);
                }
            }
        }
        add_values<V>(node, head_kv, at, min(WARP, s.end - begin), weights, result);
    }
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
        if (h < heads) {
            write(node, i, head + h, part, sums[h], result[h]);
        }
    }
}

// Named by fours and heads.
#define MAKE_ONE(T, FOURS, HEADS) \
    KERNEL flash_attn_##T##_##FOURS##_##HEADS(const Node node) { flash_attn<T, T, FOURS, HEADS>(node); }
#define MAKE(T) MAKE_ONE(T, 1, 1) MAKE_ONE(T, 1, 4) MAKE_ONE(T, 1, 8) MAKE_ONE(T, 2, 4)
MAKE(F16)
MAKE(Q8_0)
MAKE_ONE(ANY, 5, 1)
