// compute: 75 80
// FLASH_ATTN_EXT of many queries on tensor cores, with keys and values of F16 of the same length: a block for a tile of 64 rows, which are queries
// with the heads that share keys and values, so that these are read once for all of them. A warp has 16 rows. Keys and values of a step come into
// shared memory while those before are used. Queries become f16 over a power of two for each row; weights become f16, too. Logits are in base 2.
// Where there are few tiles, keys are divided, and flash_attn_parts.cu puts the parts together.
#include "common.cuh"
#include "matrix.cuh"
#include "halves.cuh"
#include "attention.cuh"
#include "attention_tile.cuh"

const u32 THREADS = 128;
// Bytes of the keys of a step, and of its values; of both.
const u32 HALF = 8192, STAGE = 2 * HALF;
const float LOG2_E = 1.442695041f, LN_2 = 0.693147181f;

__shared__ __align__(256) u8 stages[2 * STAGE];
// Of each warp, whether it has results that are no numbers.
__shared__ bool is_wrong[THREADS / WARP];

INLINE float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// To a millionth of it.
INLINE float tanh_of(float x) {
    float square = x * x, near_zero = x * (1.0f + square * (-1.0f / 3.0f + square * (2.0f / 15.0f)));
    return fabsf(x) < 0.1f ? near_zero : 1.0f - __fdividef(2.0f, 1.0f + power_of_2(2.0f * LOG2_E * x));
}

INLINE bool are_numbers(u32 halves) {
    return (halves & 0x7c00) != 0x7c00 && (halves & 0x7c000000) != 0x7c000000;
}

// multiply_add where what weighs nothing does not count, whatever its value is.
INLINE void add_weighed(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (__all_sync(ALL_LANES, are_numbers(b0) && are_numbers(b1))) {
        multiply_add<F16>(sum, a, b0, b1);
        return;
    }
    u32 lane = threadIdx.x % WARP;
#pragma unroll 1
    for (u32 k = 0; k < 16; k++) {
        u32 pair = k % 8 / 2, shift = k % 2 * 16, b = k < 8 ? b0 : b1;
        u32 weights[2], values[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            weights[i] = __shfl_sync(ALL_LANES, k < 8 ? a[i] : a[2 + i], (lane & ~3u) + pair) >> shift;
            values[i] = __shfl_sync(ALL_LANES, b, lane % 4 * 8 + 4 * i + pair) >> shift;
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float weight = half_to_float(weights[i / 2]);
            if (weight != 0.0f) {
                sum[i] += weight * half_to_float(values[i % 2]);
            }
        }
    }
}

template <u32 D>
struct Tile {
    static constexpr u32 KEYS = HALF / D / 2, PIECES = D / 8;

    // This thread's part of what its warp has: the matrices' rows `lane / 4` and 8 further, there each eight columns two.
    u32 queries[D / 16][4];
    float results[D / 8][4];
    // By what a row's sums become logits; its largest logit; this thread's part of the sum of its weights.
    float factor[2], most[2], sum[2];
    // Where this lane reads matrices of keys and of values in a stage.
    u32 read_keys, read_values;

    // A piece of 16 bytes of a row of a stage. The same pieces of eight rows lie in different banks.
    static INLINE u32 piece(u32 row, u32 piece) {
        return row * D * 2 + ((piece ^ row % 8) << 4);
    }

    static INLINE u32 row_of(u32 h) {
        return threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + 8 * h;
    }

    INLINE void find_places() {
        u32 lane = threadIdx.x % WARP, shared = shared_address(stages);
        read_keys = kept(shared + piece(lane / 16 * 8 + lane % 8, lane / 8 % 2));
        read_values = kept(shared + HALF + piece(lane % 16, lane / 16));
    }

    INLINE void read_queries(const Node& node, const Place& place) {
        float softcap = number_param(node, 2), of_all = number_param(node, 0) * (softcap == 0.0f ? LOG2_E : 1.0f / softcap);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            Row row = place.row(node, row_of(h));
            const float2* from = (const float2*)::row(node.t[0], row.query, row.head, 0) + threadIdx.x % 4;
            float2 x[D / 8];
            float largest = 0.0f;
#pragma unroll
            for (u32 i = 0; i < D / 8; i++) {
                x[i] = row.is_there ? from[4 * i] : make_float2(0.0f, 0.0f);
                largest = isfinite(x[i].x) ? fmaxf(largest, fabsf(x[i].x)) : largest;
                largest = isfinite(x[i].y) ? fmaxf(largest, fabsf(x[i].y)) : largest;
            }
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            int exponent = max(exponent_above(largest) - 15, -100);
            float to_half = power_of_two(-exponent);
            factor[h] = power_of_two(exponent) * of_all;
#pragma unroll
            for (u32 i = 0; i < D / 8; i++) {
                queries[i / 2][i % 2 * 2 + h] = two_halves(x[i].x * to_half, x[i].y * to_half);
            }
        }
    }

    // A sink is a key without a value.
    INLINE void begin_sums(const Node& node, const Place& place) {
        const Tensor& sinks = node.t[5];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            Row row = place.row(node, row_of(h));
            bool has_sink = sinks.at != 0 && place.part == 0 && row.is_there;
            most[h] = has_sink ? read_f32(sinks.at + row.head * sinks.nb[0]) * LOG2_E : minus_infinity();
            sum[h] = has_sink && threadIdx.x % 4 == 0 ? 1.0f : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < D / 2; i++) {
            results[i / 4][i % 4] = 0.0f;
        }
    }

    // Has the keys and values of a step copied, and zeros where there is none: a step lies in one block of a cache.
    INLINE void copy(const Node& node, const Place& place, const Step& s, u32 stage) {
        if (s.column == NONE) {
            return;
        }
        u32 at = cache_row(node, s.first, s.column - 1, node.t[1].ne[1], node.p[3]), skipped = s.first % KEYS, first = threadIdx.x / PIECES;
        u32 to = shared_address(stages) + stage * STAGE + piece(first, threadIdx.x % PIECES);
#pragma unroll
        for (u32 i = 0; i < KEYS * PIECES / THREADS; i++) {
            u32 j = first + i * (THREADS / PIECES);
            bool is_there = at != NONE && j >= skipped && j - skipped < s.end - s.first;
            u32 row = is_there ? at + j - skipped : 0;
            copy_16(to + i * THREADS * 16, ::row(node.t[1], row, place.kv, 0) + threadIdx.x % PIECES * 16, is_there);
            copy_16(to + i * THREADS * 16 + HALF, ::row(node.t[2], row, place.kv, 0) + threadIdx.x % PIECES * 16, is_there);
        }
        end_group();
    }

    INLINE void multiply(u32 stage, float (&logits)[KEYS / 8][4]) {
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i++) {
            logits[i / 4][i % 4] = 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < D / 16; i++) {
            u32 at = (read_keys ^ i << 5) + stage * STAGE, b[4];
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j += 2) {
                load_matrices(at + j * 8 * D * 2, b[0], b[1], b[2], b[3]);
                multiply_add<F16>(logits[j], queries[i], b[0], b[1]);
                multiply_add<F16>(logits[j + 1], queries[i], b[2], b[3]);
            }
        }
    }

    // Sums become logits.
    INLINE void scale(const Node& node, float (&logits)[KEYS / 8][4]) {
        float softcap = number_param(node, 2);
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i++) {
            logits[i / 4][i % 4] *= factor[i % 4 / 2];
        }
        if (softcap != 0.0f) {
#pragma unroll
            for (u32 i = 0; i < KEYS / 2; i++) {
                logits[i / 4][i % 4] = softcap * LOG2_E * tanh_of(logits[i / 4][i % 4]);
            }
        }
    }

    // What a row does not see, or the mask hides, does not count, whatever is there.
    INLINE void hide(const Node& node, const Place& place, const Step& s, float (&logits)[KEYS / 8][4]) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 r = row_of(h), begin = begins[r], end = columns[r] == s.column ? ends[r] : 0;
#pragma unroll
            for (u32 i = 0; i < KEYS / 4; i++) {
                u32 j = s.first / KEYS * KEYS + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
                float& logit = logits[i / 2][2 * h + i % 2];
                float added = j >= begin && j < end ? 0.0f : minus_infinity();
                if (node.t[3].at != 0 && added == 0.0f) {
                    added = masked(node, place.row(node, r).query, j);
                }
                logit = added == minus_infinity() ? added : logit + added * LOG2_E;
            }
        }
    }

    // Logits become weights.
    INLINE void weigh(float (&logits)[KEYS / 8][4]) {
        float of_before[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float higher = most[h];
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
                higher = fmaxf(higher, fmaxf(logits[j][2 * h], logits[j][2 * h + 1]));
            }
            higher = fmaxf(higher, __shfl_xor_sync(ALL_LANES, higher, 1));
            higher = fmaxf(higher, __shfl_xor_sync(ALL_LANES, higher, 2));
            float base = higher == minus_infinity() ? 0.0f : higher;
            of_before[h] = power_of_2(most[h] - base);
            most[h] = higher;
            sum[h] *= of_before[h];
#pragma unroll
            for (u32 j = 0; j < KEYS / 4; j++) {
                float& logit = logits[j / 2][2 * h + j % 2];
                logit = power_of_2(logit - base);
                sum[h] += logit;
            }
        }
        if (__any_sync(ALL_LANES, of_before[0] != 1.0f || of_before[1] != 1.0f)) {
#pragma unroll
            for (u32 i = 0; i < D / 2; i++) {
                results[i / 4][i % 4] *= of_before[i % 4 / 2];
            }
        }
    }

    template <bool CAREFUL>
    INLINE void add_values(u32 stage, const float (&weights)[KEYS / 8][4]) {
#pragma unroll
        for (u32 j = 0; j < KEYS / 8; j += 2) {
            u32 a[4], b[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                a[i] = two_halves(weights[j + i / 2][i % 2 * 2], weights[j + i / 2][i % 2 * 2 + 1]);
            }
#pragma unroll
            for (u32 i = 0; i < D / 8; i += 2) {
                load_transposed((read_values ^ i << 4) + stage * STAGE + j * 8 * D * 2, b);
                if (CAREFUL) {
                    add_weighed(results[i], a, b[0], b[1]);
                    add_weighed(results[i + 1], a, b[2], b[3]);
                } else {
                    multiply_add<F16>(results[i], a, b[0], b[1]);
                    multiply_add<F16>(results[i + 1], a, b[2], b[3]);
                }
            }
        }
    }

    // The keys of a step, if the warp sees any.
    INLINE void take(const Node& node, const Place& place, const Step& s, u32 stage, bool careful) {
        u32 base = s.first / KEYS * KEYS;
        bool sees = false, is_whole = node.t[3].at == 0;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 r = row_of(h), begin = begins[r], end = columns[r] == s.column ? ends[r] : 0;
            sees |= begin < base + KEYS && end > base;
            is_whole &= begin <= base && end >= base + KEYS;
        }
        if (!__any_sync(ALL_LANES, sees)) {
            return;
        }
        float logits[KEYS / 8][4];
        multiply(stage, logits);
        scale(node, logits);
        if (!__all_sync(ALL_LANES, is_whole)) {
            hide(node, place, s, logits);
        }
        weigh(logits);
        if (careful) {
            add_values<true>(stage, logits);
        } else {
            add_values<false>(stage, logits);
        }
    }

    INLINE void attend(const Node& node, const Place& place, bool careful) {
        begin_sums(node, place);
        Step next = {0, 0, 0};
        go_on<KEYS>(next);
        copy(node, place, next, 0);
        for (u32 stage = 0; next.column != NONE; stage ^= 1) {
            Step s = next;
            go_on<KEYS>(next);
            wait_groups<0>();
            __syncthreads();
            copy(node, place, next, stage ^ 1);
            take(node, place, s, stage, careful);
        }
    }

    // Whether a result of the tile is no number. What weighs nothing may have made it so.
    INLINE bool has_gone_wrong() {
        bool is_number = true;
#pragma unroll
        for (u32 i = 0; i < D / 2; i++) {
            is_number &= results[i / 4][i % 4] == results[i / 4][i % 4];
        }
        bool of_warp = __any_sync(ALL_LANES, !is_number);
        if (threadIdx.x % WARP == 0) {
            is_wrong[threadIdx.x / WARP] = of_warp;
        }
        __syncthreads();
        return is_wrong[0] || is_wrong[1] || is_wrong[2] || is_wrong[3];
    }

    // The results, or a part's with the largest logit and the sum of weights behind.
    INLINE void write(const Node& node, const Place& place) {
        u32 parts = node.p[4], lane = threadIdx.x % 4;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            Row row = place.row(node, row_of(h));
            float all = sum[h] + __shfl_xor_sync(ALL_LANES, sum[h], 1);
            all += __shfl_xor_sync(ALL_LANES, all, 2);
            if (!row.is_there) {
                continue;
            }
            float* to = (float*)::row(node.t[RESULT], row.head, row.query, 0);
            float by = all > 0.0f ? 1.0f / all : 1.0f;
            if (parts > 1) {
                to = parts_of(node) + (u64(row.query * node.t[0].ne[2] + row.head) * parts + place.part) * ((D + 5) / 4 * 4);
                by = 1.0f;
                if (lane < 2) {
                    to[D + lane] = lane == 0 ? most[h] * LN_2 : all;
                }
            }
#pragma unroll
            for (u32 i = 0; i < D / 4; i++) {
                to[i / 2 * 8 + 2 * lane + i % 2] = results[i / 2][2 * h + i % 2] * by;
            }
        }
    }
};

template <u32 D>
INLINE void flash_attn_tiles(const Node& node) {
    Place place = place_of(node);
    Tile<D> tile;
    find_rows<Tile<D>::KEYS>(node, place);
    tile.find_places();
    tile.read_queries(node, place);
    bool careful = false;
    do {
        tile.attend(node, place, careful);
        careful = !careful && tile.has_gone_wrong();
    } while (careful);
    tile.write(node, place);
}

// Named by the length of a key. A long one leaves registers for fewer blocks.
KERNEL_OF(THREADS, 3) flash_attn_tiles_64(const Node node) {
    flash_attn_tiles<64>(node);
}
KERNEL_OF(THREADS, 2) flash_attn_tiles_128(const Node node) {
    flash_attn_tiles<128>(node);
}
