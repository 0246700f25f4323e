// compute: 61
// FLASH_ATTN_EXT of few queries, with keys and values of F16 of the same length: a block for a query, up to four heads that share keys and values,
// and a part of the keys that are seen. Lanes that are neighbours read neighbouring words of a key, then of a value; what they read is on its way
// while the softmax is computed. flash_attn_parts.cu puts the parts together.
#include "common.cuh"
#include "blocks.cuh"
#include "attention.cuh"

// Warps of a block, keys that it takes at once, and elements of a key or value that a lane takes.
const u32 WARPS = 4, KEYS = 32, EIGHT = 8;

// Where the keys at hand are, or a number that is none; what a mask adds to their logits.
__shared__ u32 rows[KEYS];
__shared__ float added[KEYS];
// What is kept of the results before, and what the block knows of a head.
__shared__ float kept[4], most[4], sum[4];

// The query's heads: the first, how many, and the one of keys and values.
struct Heads {
    u32 first, count, kv;
};

// Blocks are counted by part, then by heads, then by query.
INLINE Heads heads_of(const Node& node, u32 room) {
    u32 heads_kv = node.t[1].ne[2], sharing = node.t[0].ne[2] / heads_kv, groups = (sharing + room - 1) / room;
    u32 number = blockIdx.x / node.p[4] % (groups * heads_kv), kv = number / groups, first = number % groups * room;
    return {kv * sharing + first, min(room, sharing - first), kv};
}

// Where vector `i` of a head's floats is in shared memory: lanes read and write each second one, and those that are four lanes apart are to find
// different banks.
INLINE u32 place_of(u32 i) {
    return i ^ (i >> 3 & 1);
}

// What this lane has of the query's heads: it is read once for the block. Of heads that are not there, zeros.
template <u32 LANES, u32 HEADS>
INLINE void read_query(const Tensor& q, u32 i, Heads heads, float (&query)[HEADS][EIGHT]) {
    constexpr u32 VECTORS = LANES * EIGHT / 4;
    __shared__ float4 all[HEADS * VECTORS];
    for (u32 at = threadIdx.x; at < HEADS * VECTORS; at += WARPS * WARP) {
        u32 h = at / VECTORS;
        float4 x = make_float4(0, 0, 0, 0);
        if (h < heads.count) {
            x = ((const float4*)row(q, i, heads.first + h, 0))[at % VECTORS];
        }
        all[place_of(at)] = x;
    }
    __syncthreads();
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
#pragma unroll
        for (u32 e = 0; e < EIGHT; e += 4) {
            float4 x = all[place_of(h * VECTORS + (threadIdx.x % LANES * EIGHT + e) / 4)];
            query[h][e] = x.x;
            query[h][e + 1] = x.y;
            query[h][e + 2] = x.z;
            query[h][e + 3] = x.w;
        }
    }
}

INLINE void eight_of(uint4 w, float (&x)[EIGHT]) {
    floats_of<F16>(w.x, x[0], x[1]);
    floats_of<F16>(w.y, x[2], x[3]);
    floats_of<F16>(w.z, x[4], x[5]);
    floats_of<F16>(w.w, x[6], x[7]);
}

// The words of this lane, of the keys or values at hand: LANES lanes for each.
template <u32 LANES>
INLINE void read(const Tensor& t, u32 head, uint4 (&words)[KEYS * LANES / (WARPS * WARP)]) {
    u32 first = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    constexpr u32 AT_ONCE = WARPS * WARP / LANES;
#pragma unroll
    for (u32 i = 0; i < KEYS / AT_ONCE; i++) {
        u32 at = rows[first + i * AT_ONCE];
        words[i] = make_uint4(0, 0, 0, 0);
        if (at != ~0u) {
            words[i] = *(const uint4*)(row(t, at, head, 0) + 16 * lane);
        }
    }
}

// Logits of a head's keys at hand, and then their weights; heads begin in different banks.
const u32 OF_HEAD = KEYS + 8;

// Logits become weights; a warp for each head.
template <u32 HEADS>
INLINE void weigh(float (&logits)[HEADS][OF_HEAD]) {
    u32 lane = threadIdx.x % WARP, head = threadIdx.x / WARP;
    if (head >= HEADS) {
        return;
    }
    float before = most[head], higher = before, more = 0.0f;
#pragma unroll
    for (u32 i = lane; i < KEYS; i += WARP) {
        higher = fmaxf(higher, logits[head][i]);
    }
    higher = max_of_warp(higher);
#pragma unroll
    for (u32 i = lane; i < KEYS; i += WARP) {
        float logit = logits[head][i], weight = logit == minus_infinity() ? 0.0f : expf(logit - higher);
        logits[head][i] = weight;
        more += weight;
    }
    more = sum_of_warp(more);
    float keep = before == minus_infinity() ? 0.0f : expf(before - higher);
    if (lane == 0) {
        kept[head] = keep;
        most[head] = higher;
        sum[head] = sum[head] * keep + more;
    }
}

// Adds up what all lanes have of the results, and writes them, or a part's with the largest logit and the sum of weights behind.
template <u32 LANES, u32 HEADS>
INLINE void write(const Node& node, u32 i, u32 part, Heads heads, float (&results)[HEADS][EIGHT]) {
    __shared__ float4 of_warps[WARPS][HEADS][LANES * EIGHT / 4];
    u32 dv = LANES * EIGHT, parts = node.p[4], lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
#pragma unroll
        for (u32 e = 0; e < EIGHT; e++) {
#pragma unroll
            for (u32 offset = LANES; offset < WARP; offset *= 2) {
                results[h][e] += __shfl_xor_sync(ALL_LANES, results[h][e], offset);
            }
        }
        if (lane < LANES) {
#pragma unroll
            for (u32 e = 0; e < EIGHT; e += 4) {
                float4 four = {results[h][e], results[h][e + 1], results[h][e + 2], results[h][e + 3]};
                of_warps[threadIdx.x / WARP][h][place_of((lane * EIGHT + e) / 4)] = four;
            }
        }
    }
    __syncthreads();
    for (u32 j = threadIdx.x; j < heads.count * dv; j += WARPS * WARP) {
        u32 h = j / dv, e = j % dv, head = heads.first + h;
        float result = 0.0f, over = sum[h];
        for (u32 w = 0; w < WARPS; w++) {
            result += ((const float*)&of_warps[w][h][place_of(e / 4)])[e % 4];
        }
        if (parts == 1) {
            write_f32(row(node.t[RESULT], head, i, 0) + e * 4, over > 0.0f ? result / over : 0.0f);
            continue;
        }
        float* to = parts_of(node) + (u64(i * node.t[0].ne[2] + head) * parts + part) * ((dv + 5) / 4 * 4);
        to[e] = result;
        if (e == 0) {
            to[dv] = most[h];
            to[dv + 1] = over;
        }
    }
}

// What a sink weighs, which is a key without a value.
template <u32 HEADS>
INLINE void begin(const Node& node, u32 part, Heads heads) {
    const Tensor& sinks = node.t[5];
    if (threadIdx.x < HEADS) {
        bool has_sink = sinks.at != 0 && part == 0 && threadIdx.x < heads.count;
        most[threadIdx.x] = has_sink ? read_f32(sinks.at + (heads.first + threadIdx.x) * sinks.nb[0]) : minus_infinity();
        sum[threadIdx.x] = has_sink ? 1.0f : 0.0f;
    }
}

// Finds the keys from `first` to before `end`, as many as there are at hand.
INLINE void find_keys(const Node& node, u32 i, Seen s, u32 first, u32 n_kv, u32 block) {
    u32 j = first + threadIdx.x;
    if (threadIdx.x < KEYS) {
        u32 at = j < s.end ? cache_row(node, j, s.column, n_kv, block) : ~0u;
        rows[threadIdx.x] = at;
        added[threadIdx.x] = at == ~0u ? minus_infinity() : masked(node, i, j);
    }
    __syncthreads();
}

// The logits of the keys at hand.
template <u32 LANES, u32 HEADS, u32 TIMES>
INLINE void multiply(const Node& node, const float (&query)[HEADS][EIGHT], const uint4 (&words)[TIMES], float (&logits)[HEADS][OF_HEAD]) {
    u32 lane = threadIdx.x % LANES;
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        float key[EIGHT], sums[HEADS] = {};
        eight_of(words[t], key);
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
#pragma unroll
            for (u32 e = 0; e < EIGHT; e++) {
                sums[h] += query[h][e] * key[e];
            }
        }
        float logit = add_lanes<HEADS, LANES>(sums);
        u32 of = threadIdx.x / LANES + t * (KEYS / TIMES);
        if (lane < HEADS) {
            // Where no key is, or the mask hides it, its words do not count.
            logits[lane][of] = added[of] == minus_infinity() ? minus_infinity() : capped(node, logit) + added[of];
        }
    }
    __syncthreads();
}

// Adds the values at hand, with their weights.
template <u32 LANES, u32 HEADS, u32 TIMES>
INLINE void add_values(const uint4 (&words)[TIMES], const float (&weights)[HEADS][OF_HEAD], float (&results)[HEADS][EIGHT]) {
#pragma unroll
    for (u32 h = 0; h < HEADS; h++) {
#pragma unroll
        for (u32 e = 0; e < EIGHT; e++) {
            results[h][e] *= kept[h];
        }
    }
#pragma unroll
    for (u32 t = 0; t < TIMES; t++) {
        float value[EIGHT];
        eight_of(words[t], value);
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            float weight = weights[h][threadIdx.x / LANES + t * (KEYS / TIMES)];
            // What a mask hides may be no number.
            if (weight != 0.0f) {
#pragma unroll
                for (u32 e = 0; e < EIGHT; e++) {
                    results[h][e] += weight * value[e];
                }
            }
        }
    }
    __syncthreads();
}

template <u32 LANES, u32 HEADS>
INLINE void flash_attn_few(const Node& node) {
    __shared__ float logits[HEADS][OF_HEAD];
    const Tensor &q = node.t[0], &k = node.t[1];
    u32 block = node.p[3], parts = node.p[4], part = blockIdx.x % parts, n_kv = k.ne[1];
    u32 groups = (q.ne[2] / k.ne[2] + HEADS - 1) / HEADS, i = blockIdx.x / parts / (groups * k.ne[2]);
    Heads heads = heads_of(node, HEADS);
    float query[HEADS][EIGHT], results[HEADS][EIGHT] = {};
    read_query<LANES>(q, i, heads, query);
    begin<HEADS>(node, part, heads);
    Seen s = seen(node, i, n_kv, block);
    // The part's keys: as many for each, in whole warps.
    u32 count = ((s.end - s.begin + parts - 1) / parts + WARP - 1) / WARP * WARP;
    s.begin = min(s.begin + part * count, s.end);
    s.end = min(s.begin + count, s.end);
    for (u32 first = s.begin; first < s.end; first += KEYS) {
        uint4 keys[KEYS * LANES / (WARPS * WARP)], values[KEYS * LANES / (WARPS * WARP)];
        find_keys(node, i, s, first, n_kv, block);
        read<LANES>(k, heads.kv, keys);
        read<LANES>(node.t[2], heads.kv, values);
        multiply<LANES>(node, query, keys, logits);
        weigh<HEADS>(logits);
        __syncthreads();
        add_values<LANES>(values, logits, results);
    }
    __syncthreads();
    write<LANES, HEADS>(node, i, part, heads, results);
}

// Named by the length of a key and heads.
#define MAKE(LENGTH, HEADS) \
    KERNEL_OF(WARPS * WARP, 4) flash_attn_few_##LENGTH##_##HEADS(const Node node) { flash_attn_few<LENGTH / EIGHT, HEADS>(node); }
MAKE(64, 1)
MAKE(64, 4)
MAKE(128, 1)
MAKE(128, 4)
