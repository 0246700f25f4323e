// SUM_ROWS, MEAN, CUMSUM: a workgroup for each row.
#version 460

#include "common.glsl"

layout(constant_id = 1) const uint KIND = 0;

const uint SUM_ROWS = 0, MEAN = 1;

// Each invocation has a part of the row, whose beginning is the sum of the parts before.
void cumulate(uvec2 from, uvec2 to, uint n) {
    uint part = (n + LANES - 1) / LANES, begin = min(gl_LocalInvocationID.x * part, n), end = min(begin + part, n);
    float sum = 0.0;
    for (uint i = begin; i < end; i++) {
        sum += read_f32(plus(from, i, 4));
    }
    places[gl_LocalInvocationID.x] = sum;
    barrier();
    float before = 0.0;
    for (uint i = 0; i < gl_LocalInvocationID.x; i++) {
        before += places[i];
    }
    for (uint i = begin; i < end; i++) {
        before += read_f32(plus(from, i, 4));
        write_f32(plus(to, i, 4), before);
    }
}

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uint r = group(), n = x.ne.x;
    if (r >= x.ne.y * x.ne.z * x.ne.w) {
        return;
    }
    if (KIND > MEAN) {
        cumulate(row(x, r), row(y, r), n);
        return;
    }
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        sum += read_f32(plus(row(x, r), i, 4));
    }
    sum = sum_of(sum);
    if (gl_LocalInvocationID.x == 0) {
        write_f32(row(y, r), KIND == MEAN ? sum / float(n) : sum);
    }
}
