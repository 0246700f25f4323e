// SOFT_MAX: a workgroup for each row.
#version 460

#include "common.glsl"

layout(constant_id = 1) const uint MASK = F32;

void main() {
    Tensor x = tensor(0), mask = tensor(1), y = tensor(RESULT);
    uint r = group(), n = x.ne.x;
    if (r >= x.ne.y * x.ne.z * x.ne.w) {
        return;
    }
    uint i1 = r % x.ne.y, i2 = r / x.ne.y % x.ne.z, i3 = r / x.ne.y / x.ne.z;
    uvec2 from = row(x, r), to = row(y, r), masks = row(mask, i1, i2 % max(mask.ne.z, 1), i3 % max(mask.ne.w, 1));
    float none = minus_infinity(), most = none, sum = 0.0, scale = number_param(0);
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        float v = scale * read_f32(plus(from, i, 4));
        if (is_there(mask)) {
            v += read_element(MASK, plus(masks, i, MASK == F32 ? 4 : 2));
        }
        write_f32(plus(to, i, 4), v);
        most = max(most, v);
    }
    most = max_of(most);
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        float v = most == none ? 0.0 : exp(read_f32(plus(to, i, 4)) - most);
        write_f32(plus(to, i, 4), v);
        sum += v;
    }
    sum = sum_of(sum);
    for (uint i = gl_LocalInvocationID.x; most != none && i < n; i += LANES) {
        write_f32(plus(to, i, 4), read_f32(plus(to, i, 4)) / sum);
    }
}
