// FLASH_ATTN_EXT: a workgroup for each query and head, which goes through the keys that are seen, LANES at a time, with a running softmax.
// The cache may be paged.
#version 460

#include "common.glsl"
#include "blocks.glsl"

layout(constant_id = 1) const uint K_TYPE = F16;
layout(constant_id = 2) const uint V_TYPE = F16;
layout(constant_id = 3) const uint MASK = F32;
// Elements of a key, rounded up; fours of a value that an invocation has.
layout(constant_id = 4) const uint LENGTH = 64;
layout(constant_id = 5) const uint PARTS = 1;

shared vec4 query[LENGTH / 4];
// Of the keys at hand: their weights, and their rows in the cache.
shared float weights[LANES];
shared uint rows[LANES];

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
        int seq = read_i32(plus(seqs.at, i, seqs.nb.x));
        s.column = uint(seq);
        positions = table.ne.x * block;
        if (s.column >= table.ne.y) {
            wrong(SEQUENCE, seq, table.ne.y);
            s.right = false;
        }
    }
    int position = read_i32(plus(pos.at, i, pos.nb.x));
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

float logit(uvec2 key, uint d) {
    float sum = 0.0, softcap = number_param(2);
    for (uint i = 0; i < d; i += 4) {
        sum += dot(query[i / 4], quad(K_TYPE, key, i, d));
    }
    sum *= number_param(0);
    if (softcap != 0.0) {
        sum /= softcap;
        float a = abs(sum), e = exp(-2.0 * a), t = a < 0.02 ? a * (1.0 - a * a / 3.0) : (1.0 - e) / (1.0 + e);
        sum = softcap * (sum < 0.0 ? -t : t);
    }
    return sum;
}

void main() {
    Tensor q = tensor(0), k = tensor(1), v = tensor(2), mask = tensor(3), sinks = tensor(5), y = tensor(RESULT);
    uint g = group(), head = g % q.ne.z, i = g / q.ne.z, lane = gl_LocalInvocationID.x;
    if (i >= q.ne.y) {
        return;
    }
    uint d = q.ne.x, n_kv = k.ne.y, block = param(3), head_kv = head / (q.ne.z / k.ne.z);
    for (uint l = lane; l < LENGTH / 4; l += LANES) {
        query[l] = 4 * l < d ? quad(F32, row(q, i, head, 0), 4 * l, d) : vec4(0);
    }
    Seen s = seen(i, n_kv, block);
    if (!s.right) {
        s.begin = s.end = 0;
    }
    float most = minus_infinity(), sum = 0.0;
    if (is_there(sinks)) {
        most = read_f32(plus(sinks.at, head, sinks.nb.x));
        sum = 1.0;
    }
    vec4 result[PARTS];
    [[unroll]] for (uint p = 0; p < PARTS; p++) {
        result[p] = vec4(0);
    }
    for (uint begin = s.begin; begin < s.end; begin += LANES) {
        uint j = begin + lane, at = j < s.end ? cache_row(j, s.column, n_kv, block) : ~0u;
        barrier();
        float x = minus_infinity();
        if (at != ~0u) {
            x = logit(row(k, at, head_kv, 0), d);
            if (is_there(mask)) {
                x += read_element(MASK, plus(row(mask, i, 0, 0), j, MASK == F32 ? 4 : 2));
            }
        }
        float higher = max(most, max_of(x));
        float weight = x == minus_infinity() ? 0.0 : exp(x - higher), kept = most == minus_infinity() ? 0.0 : exp(most - higher);
        sum = sum * kept + sum_of(weight);
        most = higher;
        weights[lane] = weight;
        rows[lane] = at;
        barrier();
        [[unroll]] for (uint p = 0; p < PARTS; p++) {
            result[p] *= kept;
        }
        uint count = min(LANES, s.end - begin);
        for (uint l = 0; l < count; l++) {
            float w = weights[l];
            if (w == 0.0 || rows[l] == ~0u) {
                continue;
            }
            uvec2 value = row(v, rows[l], head_kv, 0);
            [[unroll]] for (uint p = 0; p < PARTS; p++) {
                uint e = (p * LANES + lane) * 4;
                if (e < v.ne.x) {
                    result[p] += w * quad(V_TYPE, value, e, v.ne.x);
                }
            }
        }
    }
    [[unroll]] for (uint p = 0; p < PARTS; p++) {
        uint e = (p * LANES + lane) * 4;
        for (uint l = 0; l < 4 && e + l < v.ne.x; l++) {
            write_f32(plus(row(y, head, i, 0), e + l, 4), sum > 0.0 ? result[p][l] / sum : 0.0);
        }
    }
}
