// CAST of blocks to F32: an invocation for each four elements.
#version 460

#include "common.glsl"
#include "blocks.glsl"

layout(constant_id = 1) const uint FROM = Q4_0;

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uint place = group() * LANES + gl_LocalInvocationID.x, quads = y.ne.x / 4;
    if (place >= quads * y.ne.y * y.ne.z * y.ne.w) {
        return;
    }
    uint i = place % quads * 4, r = place / quads;
    vec4 v = quad(FROM, row(x, r), i, x.ne.x);
    uvec2 to = plus(row(y, r), i, 4);
    [[unroll]] for (uint j = 0; j < 4; j++) {
        write_f32(plus(to, 4 * j), v[j]);
    }
}
