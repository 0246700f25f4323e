// FLASH_ATTN_EXT: a workgroup for a query, some heads that share keys and values, and a part of the keys that are seen. It goes through them
// LANES at a time, with a running softmax. The cache may be paged. Where the keys are divided, flash_attn_parts.comp puts the parts together.
#version 460

#include "common.glsl"

layout(constant_id = 1) const uint K_TYPE = F16;
layout(constant_id = 2) const uint V_TYPE = F16;
layout(constant_id = 3) const uint MASK = F32;
// Elements of a key, rounded up; fours of a value that an invocation has; heads.
layout(constant_id = 4) const uint LENGTH = 64;
layout(constant_id = 5) const uint FOURS = 1;
layout(constant_id = 6) const uint HEADS = 1;
// Whether keys and values begin at whole words, and have whole pairs of octets.
layout(constant_id = 7) const bool ROWS_ARE_WHOLE = false;
#define WHOLE ROWS_ARE_WHOLE

#include "blocks.glsl"
#define TABLE_TYPE K_TYPE
#include "octets.glsl"
#include "for_all.glsl"

shared vec4 query[HEADS][LENGTH / 4];
// Of the keys at hand: their logits, then their weights, and their rows in the cache.
shared float weights[HEADS][LANES];
shared uint rows[LANES];
// Of each head: the largest logit so far, the sum of weights, and what is kept of it when a larger one comes.
shared float most[HEADS], sum[HEADS], kept[HEADS];

// Keys from `begin` to before `end` are seen; `column` is the sequence's in the table.
struct Seen {
    uint begin, end, column;
    bool right;
};

Seen seen(uint i, uint n_kv, uint block) {
    Tensor pos = tensor(4), table = tensor(6), seqs = tensor(7);
    uint window = param(1);
    Seen s = Seen(0, n_kv, 0, true);
    if (!is_there(pos)) {
        return s;
    }
    uint positions = n_kv;
    if (block != 0) {
        int seq = read_for_all(plus(seqs.at, i, seqs.nb.x));
        s.column = uint(seq);
        positions = table.ne.x * block;
        if (s.column >= table.ne.y) {
            wrong(SEQUENCE, seq, table.ne.y);
            s.right = false;
        }
    }
    int position = read_for_all(plus(pos.at, i, pos.nb.x));
    if (uint(position) >= positions) {
        wrong(POSITION, position, positions);
        s.right = false;
    }
    s.end = uint(position) + 1;
    s.begin = window > 0 && s.end > window ? s.end - window : 0;
    return s;
}

// The row of the cache that key j is in, or a number that is none.
uint cache_row(uint j, uint column, uint n_kv, uint block) {
    if (block == 0) {
        return j;
    }
    Tensor table = tensor(6);
    int at = read_i32(plus(row(table, column, 0, 0), j / block, table.nb.x));
    if (uint(at) >= n_kv / block) {
        wrong(BLOCK, at, n_kv / block);
        return ~0u;
    }
    return uint(at) * block + j % block;
}

float capped(float sum) {
    float softcap = number_param(2);
    sum *= number_param(0);
    if (softcap == 0.0) {
        return sum;
    }
    sum /= softcap;
    float a = abs(sum), e = exp(-2.0 * a), t = a < 0.02 ? a * (1.0 - a * a / 3.0) : (1.0 - e) / (1.0 + e);
    return softcap * (sum < 0.0 ? -t : t);
}

// The logits of a key.
void multiply(uvec2 key, uint d, float masked) {
    float sums[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        sums[h] = 0.0;
    }
    for (uint u = 0; 8 * u < d; u++) {
        uvec2 at = octet_places(K_TYPE, u) / 4;
        Octet k = scaled(octet(K_TYPE, key, u, d), scales(K_TYPE, key, u));
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            sums[h] += dot(query[h][at.x], k.low) + dot(query[h][at.y], k.high);
        }
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        weights[h][gl_LocalInvocationID.x] = sums[h];
    }
    [[dont_unroll]] for (uint h = 0; h < HEADS; h++) {
        float x = weights[h][gl_LocalInvocationID.x];
        weights[h][gl_LocalInvocationID.x] = capped(x) + masked;
    }
}

// Makes weights of a head's logits.
void weigh(uint h) {
    uint lane = gl_LocalInvocationID.x;
    float x = weights[h][lane], before = most[h], higher = max(before, max_of(x));
    float weight = x == minus_infinity() ? 0.0 : exp(x - higher);
    weights[h][lane] = weight;
    float total = sum_of(weight);
    if (lane == 0) {
        kept[h] = before == minus_infinity() ? 0.0 : exp(before - higher);
        sum[h] = sum[h] * kept[h] + total;
        most[h] = higher;
    }
}

void main() {
    Tensor q = tensor(0), k = tensor(1), v = tensor(2), mask = tensor(3), sinks = tensor(5), y = tensor(RESULT);
    uint parts = param(4), g = group() / parts, part = group() % parts, lane = gl_LocalInvocationID.x;
    uint head = g % (q.ne.z / HEADS) * HEADS, i = g / (q.ne.z / HEADS);
    if (i >= q.ne.y) {
        return;
    }
    make_table();
    uint d = q.ne.x, n_kv = k.ne.y, block = param(3), head_kv = head / (q.ne.z / k.ne.z);
    for (uint h = 0; h < HEADS; h++) {
        for (uint l = lane; l < LENGTH / 4; l += LANES) {
            query[h][l] = 4 * l < d ? quad(F32, row(q, i, head + h, 0), 4 * l, d) : vec4(0);
        }
    }
    Seen s = seen(i, n_kv, block);
    if (!s.right) {
        s.begin = s.end = 0;
    }
    // The part's keys: as many for each, in whole steps.
    uint count = ((s.end - s.begin + parts - 1) / parts + LANES - 1) / LANES * LANES;
    s.begin = min(s.begin + part * count, s.end);
    s.end = min(s.begin + count, s.end);
    for (uint h = lane; h < HEADS; h += LANES) {
        // A sink is a key without a value.
        bool has_sink = is_there(sinks) && part == 0;
        most[h] = has_sink ? read_f32(plus(sinks.at, head + h, sinks.nb.x)) : minus_infinity();
        sum[h] = has_sink ? 1.0 : 0.0;
    }
    vec4 result[HEADS][FOURS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        [[unroll]] for (uint f = 0; f < FOURS; f++) {
            result[h][f] = vec4(0);
        }
    }
    barrier();
    for (uint begin = s.begin; begin < s.end; begin += LANES) {
        uint j = begin + lane, at = j < s.end ? cache_row(j, s.column, n_kv, block) : ~0u;
        if (at != ~0u) {
            float masked = is_there(mask) ? read_element(MASK, plus(row(mask, i, 0, 0), j, MASK == F32 ? 4 : 2)) : 0.0;
            multiply(row(k, at, head_kv, 0), d, masked);
        } else {
            [[unroll]] for (uint h = 0; h < HEADS; h++) {
                weights[h][lane] = minus_infinity();
            }
        }
        rows[lane] = at;
        [[dont_unroll]] for (uint h = 0; h < HEADS; h++) {
            weigh(h);
        }
        barrier();
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            [[unroll]] for (uint f = 0; f < FOURS; f++) {
                result[h][f] *= kept[h];
            }
        }
        for (uint l = 0; l < min(LANES, s.end - begin); l++) {
            if (rows[l] == ~0u) {
                continue;
            }
            uvec2 value = row(v, rows[l], head_kv, 0);
            [[unroll]] for (uint f = 0; f < FOURS; f++) {
                uint e = (f * LANES + lane) * 4;
                vec4 four = e < v.ne.x ? quad(V_TYPE, value, e, v.ne.x) : vec4(0);
                [[unroll]] for (uint h = 0; h < HEADS; h++) {
                    float w = weights[h][l];
                    // What a mask hides may be no number.
                    result[h][f] += w == 0.0 ? vec4(0) : w * four;
                }
            }
        }
        barrier();
    }
    uint length = (v.ne.x + 5) / 4 * 4;
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        uvec2 to = row(y, head + h, i, 0);
        float over = sum[h];
        if (parts > 1) {
            // Of each part: the largest logit, the sum of weights, and the values times their weights.
            to = plus(constants(), ((i * q.ne.z + head + h) * parts + part) * length, 4);
            over = 1.0;
            if (lane == 0) {
                write_f32(plus(to, v.ne.x, 4), most[h]);
                write_f32(plus(to, v.ne.x + 1, 4), sum[h]);
            }
        }
        [[unroll]] for (uint f = 0; f < FOURS; f++) {
            uint e = (f * LANES + lane) * 4;
            for (uint l = 0; l < 4 && e + l < v.ne.x; l++) {
                write_f32(plus(to, e + l, 4), over > 0.0 ? result[h][f][l] / over : 0.0);
            }
        }
    }
}
