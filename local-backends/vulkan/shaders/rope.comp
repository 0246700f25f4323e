// ROPE with YaRN: a workgroup for each row. With a SET_ROWS behind it, which writes the rows, heads of tokens, to a cache: its indices are the fourth source.
#version 460

#include "common.glsl"
#include "cache.glsl"

layout(constant_id = 1) const uint NEOX = 0;
// The type of the cache, from 1 on.
layout(constant_id = 2) const uint CACHE = 0;

// Longest row that goes there.
const uint CACHE_ROW = 1024;

// What goes there, until all of it is rotated: its elements share words.
shared float rotated[CACHE > 0 ? CACHE_ROW : 1];

const float PI = 3.14159265358979;

// Sine and cosine of an angle that may be many turns, of which a driver's own functions lose the digits.
vec2 turned(float angle) {
    // 2 pi in three parts, the first two of few bits, so that their products with whole numbers are exact.
    float turns = round(angle / (2.0 * PI));
    precise float rest = angle - turns * 6.28125;
    rest = rest - turns * 1.9350051879882812e-3;
    rest = rest - turns * 3.0199160e-7;
    return vec2(sin(rest), cos(rest));
}

void put(uvec2 to, uint i, float x) {
    if (CACHE > 0) {
        rotated[i] = x;
    } else {
        write_f32(plus(to, i, 4), x);
    }
}

// Writes a row of `n` elements, the head of a token, to the cache.
void write_to_cache(uint head, uint token, uint n) {
    Tensor ids = tensor(3), cache = tensor(RESULT);
    if (!all_are_rows(ids, cache.ne.y)) {
        return;
    }
    uint id = uint(read_i32(plus(row(ids, head % ids.ne.y, 0, 0), token, ids.nb.x)));
    // Whatever became of the look at all of them.
    if (id >= cache.ne.y) {
        return;
    }
    uvec2 to = row(cache, id, head, 0);
    const uint type = CACHE - 1;
    if (type != F32 && (to.x & 3) == 0 && (n & 1) == 0) {
        for (uint i = gl_LocalInvocationID.x * 2; i < n; i += LANES * 2) {
            vec2 v = vec2(rotated[i], rotated[i + 1]);
            uint low = type == F16 ? float_to_half(v.x) : float_to_bfloat(v.x), high = type == F16 ? float_to_half(v.y) : float_to_bfloat(v.y);
            Word(plus(to, i, 2)).w = low | high << 16;
        }
    } else {
        for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
            write_element(type, plus(to, i, type == F32 ? 4 : 2), rotated[i]);
        }
    }
}

void main() {
    Tensor x = tensor(0), pos = tensor(1), factors = tensor(2), y = tensor(RESULT);
    uint r = group(), n_dims = param(0), half_ = n_dims / 2;
    float amplitude = number_param(1);
    // Radians of a position for each pair, which the host has computed.
    uvec2 rates = constants();
    if (r >= x.ne.y * x.ne.z * x.ne.w) {
        return;
    }
    uvec2 from = row(x, r), to = row(y, r);
    float position = float(read_i32(plus(pos.at, r / x.ne.y, pos.nb.x)));
    for (uint pair = gl_LocalInvocationID.x; pair < half_; pair += LANES) {
        uint i = NEOX != 0 ? pair : 2 * pair, j = NEOX != 0 ? pair + half_ : 2 * pair + 1;
        float factor = is_there(factors) ? read_f32(plus(factors.at, pair, 4)) : 1.0;
        vec2 turn = amplitude * turned(position * read_f32(plus(rates, pair, 4)) / factor);
        float a = read_f32(plus(from, i, 4)), b = read_f32(plus(from, j, 4));
        put(to, i, a * turn.y - b * turn.x);
        put(to, j, a * turn.x + b * turn.y);
    }
    for (uint i = n_dims + gl_LocalInvocationID.x; i < x.ne.x; i += LANES) {
        put(to, i, read_f32(plus(from, i, 4)));
    }
    if (CACHE > 0) {
        // It waits for all before it reads what they have rotated.
        write_to_cache(r % x.ne.y, r / x.ne.y, x.ne.x);
    }
}
