// ARGSORT and TOP_K: a workgroup for each row. An element's place is the number of elements before it, so that equals keep their order; rows
// are short.
#version 460

#include "common.glsl"

layout(constant_id = 1) const bool DESCENDING = false;

// NaN comes above everything.
bool is_below(float a, float b) {
    return isnan(b) ? !isnan(a) : a < b;
}

bool is_before(float a, uint i, float b, uint j) {
    bool before = DESCENDING ? is_below(b, a) : is_below(a, b);
    bool after = DESCENDING ? is_below(a, b) : is_below(b, a);
    return before || !after && i < j;
}

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uint r = group(), n = x.ne.x;
    if (r >= x.ne.y * x.ne.z * x.ne.w) {
        return;
    }
    uvec2 from = row(x, r), to = row(y, r);
    for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
        float mine = read_f32(plus(from, i, 4));
        uint place = 0;
        // Few iterations: lavapipe ends an invocation's loops after 65535 of them.
        for (uint four = 0; four < n; four += 4) {
            [[unroll]] for (uint k = 0; k < 4; k++) {
                uint j = four + k;
                place += j < n && is_before(read_f32(plus(from, j, 4)), j, mine, i) ? 1 : 0;
            }
        }
        if (place < y.ne.x) {
            Word(plus(to, place, 4)).w = i;
        }
    }
}
