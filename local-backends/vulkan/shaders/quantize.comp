// The first pass of a product of whole numbers: columns become signed bytes (packed.glsl). An invocation has a group of 32 elements.
#version 460

#include "common.glsl"
#include "blocks.glsl"
#include "packed.glsl"

// Whether columns are whole vectors of 16 bytes, in place and length.
layout(constant_id = 1) const bool WIDE = false;

void main() {
    Tensor b = tensor(1);
    uint n = b.ne.x, across = (n / 32 + LANES - 1) / LANES, g = group();
    uint i = (g % across * LANES + gl_LocalInvocationID.x) * 32, place = g / across;
    if (i >= n || place >= b.ne.y * b.ne.z * b.ne.w) {
        return;
    }
    uvec2 from = row(b, place), to = packed_column(b, place);
    vec4 x[8];
    float most = 0.0;
    bool is_finite = true;
    [[unroll]] for (uint j = 0; j < 8; j++) {
        x[j] = WIDE ? Fours(from).v[i / 4 + j] : quad(F32, from, i + 4 * j, n);
        vec4 size = abs(x[j]);
        most = max(most, max(max(size.x, size.y), max(size.z, size.w)));
        // A maximum may leave NaN out.
        is_finite = is_finite && all(lessThan(size, vec4(uintBitsToFloat(0x7f800000))));
    }
    // Of the smallest numbers it would be an infinity: they become 0.
    float over = is_finite && most > 1e-36 ? 127.0 / most : 0.0;
    uint words[8];
    int sums[2] = int[](0, 0);
    [[unroll]] for (uint j = 0; j < 8; j++) {
        ivec4 q = over > 0.0 ? ivec4(clamp(roundEven(x[j] * over), -127.0, 127.0)) : ivec4(0);
        words[j] = uint(q.x) & 0xff | (uint(q.y) & 0xff) << 8 | (uint(q.z) & 0xff) << 16 | uint(q.w) << 24;
        sums[j / 4] += q.x + q.y + q.z + q.w;
    }
    [[unroll]] for (uint j = 0; j < 4; j++) {
        Twos(to).v[i / 8 + j] = uvec2(words[2 * j], words[2 * j + 1]);
    }
    // What is no number makes products with its group NaN.
    uint scale = is_finite ? floatBitsToUint(most / 127.0) : 0x7fc00000;
    Twos(to).v[n / 8 + i / 32] = uvec2(scale, uint(sums[0]) & 0xffff | uint(sums[1]) << 16);
}
