// GET_ROWS: a workgroup for each row of the result.
#version 460

#include "common.glsl"
#include "blocks.glsl"

layout(constant_id = 1) const uint TYPE = F32;

void main() {
    Tensor a = tensor(0), ids = tensor(1), y = tensor(RESULT);
    uint r = group(), n = a.ne.x;
    if (r >= y.ne.y * y.ne.z * y.ne.w) {
        return;
    }
    uint i1 = r % y.ne.y, i2 = r / y.ne.y % y.ne.z, i3 = r / y.ne.y / y.ne.z;
    int id = read_i32(plus(plus(plus(ids.at, i1, ids.nb.x), i2, ids.nb.y), i3, ids.nb.z));
    if (uint(id) >= a.ne.y) {
        if (gl_LocalInvocationID.x == 0) {
            wrong(ROW, id, a.ne.y);
        }
        return;
    }
    uvec2 from = row(a, uint(id), i2, i3), to = row(y, r);
    if (TYPE == F32 || TYPE == I32) {
        for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
            Word(plus(to, i, 4)).w = word(plus(from, i, 4));
        }
        return;
    }
    for (uint i = gl_LocalInvocationID.x * 4; i < n; i += LANES * 4) {
        vec4 v = quad(TYPE, from, i, n);
        for (uint j = 0; j < 4 && i + j < n; j++) {
            write_f32(plus(to, i + j, 4), v[j]);
        }
    }
}
