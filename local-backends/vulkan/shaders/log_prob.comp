// LOG_PROB: a workgroup for each row.
#version 460

#include "common.glsl"

void main() {
    Tensor x = tensor(0), ids = tensor(1), y = tensor(RESULT);
    uint r = group(), n = x.ne.x;
    if (r >= x.ne.y) {
        return;
    }
    uvec2 from = row(x, r);
    int id = read_i32(plus(ids.at, r, ids.nb.x));
    float most = minus_infinity(), sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        most = max(most, read_f32(plus(from, i, 4)));
    }
    most = max_of(most);
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        sum += exp(read_f32(plus(from, i, 4)) - most);
    }
    sum = sum_of(sum);
    if (gl_LocalInvocationID.x == 0) {
        if (uint(id) >= n) {
            wrong(ID, id, n);
        } else {
            write_f32(plus(y.at, r, y.nb.x), read_f32(plus(from, uint(id), 4)) - (most + log(sum)));
        }
    }
}
