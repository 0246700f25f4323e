// ROPE with YaRN: a workgroup for each row.
#version 460

#include "common.glsl"

layout(constant_id = 1) const uint NEOX = 0;

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
        write_f32(plus(to, i, 4), a * turn.y - b * turn.x);
        write_f32(plus(to, j, 4), a * turn.x + b * turn.y);
    }
    for (uint i = n_dims + gl_LocalInvocationID.x; i < x.ne.x; i += LANES) {
        Word(plus(to, i, 4)).w = word(plus(from, i, 4));
    }
}
