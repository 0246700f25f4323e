// RMS_NORM, NORM, L2_NORM, and a product of that with a row: a workgroup for each row.
#version 460

#include "common.glsl"

layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const bool SCALED = false;

const uint NORM = 1, L2_NORM = 2;

void main() {
    Tensor x = tensor(0), scale = tensor(1), y = tensor(RESULT);
    uint r = group(), n = x.ne.x;
    if (r >= x.ne.y * x.ne.z * x.ne.w) {
        return;
    }
    uvec2 from = row(x, r), to = row(y, r);
    float mean = 0.0, squares = 0.0, eps = number_param(0);
    if (KIND == NORM) {
        for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
            mean += read_f32(plus(from, i, 4));
        }
        mean = sum_of(mean) / float(n);
    }
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        float v = read_f32(plus(from, i, 4)) - mean;
        squares += v * v;
    }
    squares = sum_of(squares);
    float divisor = KIND == L2_NORM ? max(sqrt(squares), eps) : sqrt(squares / float(n) + eps);
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        float v = (read_f32(plus(from, i, 4)) - mean) / divisor;
        write_f32(plus(to, i, 4), SCALED ? v * read_f32(plus(scale.at, i, scale.nb.x)) : v);
    }
}
