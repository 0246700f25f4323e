// The first pass of a product by matrix units: a workgroup makes a column halves, each times a power of two that keeps the largest inside
// their range, and the others as far above its lower end as can be.
#version 460

#include "common.glsl"
#include "halves.glsl"

void main() {
    Tensor b = tensor(1);
    uint c = group(), k = b.ne.x;
    if (c >= b.ne.y * b.ne.z * b.ne.w) {
        return;
    }
    uvec2 from = row(b, c), to = halves_at(b, c);
    float most = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < k; i += LANES) {
        float x = abs(read_f32(plus(from, i, 4)));
        // NaN is not less than anything.
        most = x < INFINITY ? max(most, x) : INFINITY;
    }
    most = max_of(most);
    // The largest becomes one of 2^14 to 2^15.
    int exponent = int(floatBitsToUint(most) >> 23) - 127;
    float scale = uintBitsToFloat(uint(clamp(14 - exponent, -126, 126) + 127) << 23);
    for (uint i = gl_LocalInvocationID.x; i < words_of_column(k); i += LANES) {
        float low = 2 * i < k ? read_f32(plus(from, 2 * i, 4)) : 0.0;
        float high = 2 * i + 1 < k ? read_f32(plus(from, 2 * i + 1, 4)) : 0.0;
        Word(plus(to, i, 4)).w = packHalf2x16(vec2(low, high) * scale);
    }
    if (gl_LocalInvocationID.x == 0) {
        write_f32(plus(constants(), c, 4), most < INFINITY ? 1.0 / scale : INFINITY);
    }
}
