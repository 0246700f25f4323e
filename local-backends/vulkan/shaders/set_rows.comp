// SET_ROWS: a workgroup for each row of the source. Every workgroup looks at all indices first: where one is wrong, nothing is written.
#version 460

#include "common.glsl"
#include "cache.glsl"

layout(constant_id = 1) const uint TYPE = F32;

// A block of 32 elements: scale, signed bytes.
void write_q8_0(uvec2 to, uvec2 from) {
    float most = 0.0;
    for (uint j = 0; j < 32; j++) {
        most = max(most, abs(read_f32(plus(from, 4 * j))));
    }
    float d = most / 127.0, id = d == 0.0 ? 0.0 : 1.0 / d;
    // Blocks may begin at any byte.
    write_bits(to, float_to_half(d) & 0xff, 8);
    write_bits(plus(to, 1), float_to_half(d) >> 8, 8);
    for (uint j = 0; j < 32; j += 2) {
        vec2 v = vec2(read_f32(plus(from, 4 * j)), read_f32(plus(from, 4 * j + 4))) * id;
        ivec2 q = clamp(ivec2(sign(v) * floor(abs(v) + 0.5)), -128, 127);
        write_bits(plus(to, 2 + j), q.x & 0xff, 8);
        write_bits(plus(to, 3 + j), q.y & 0xff, 8);
    }
}

void main() {
    Tensor src = tensor(1), ids = tensor(2), dst = tensor(RESULT);
    uint r = group(), n = src.ne.x;
    if (r >= src.ne.y * src.ne.z * src.ne.w || !all_are_rows(ids, dst.ne.y)) {
        return;
    }
    uint i1 = r % src.ne.y, i2 = r / src.ne.y % src.ne.z, i3 = r / src.ne.y / src.ne.z;
    uint id = uint(read_i32(plus(row(ids, i2 % ids.ne.y, i3 % ids.ne.z, 0), i1, ids.nb.x)));
    // Whatever became of the look at all of them.
    if (id >= dst.ne.y) {
        return;
    }
    uvec2 from = row(src, r), to = row(dst, id, i2, i3);
    if (TYPE == Q8_0) {
        for (uint i = gl_LocalInvocationID.x; i < n / 32; i += LANES) {
            write_q8_0(plus(to, i, 34), plus(from, i, 128));
        }
    } else if (TYPE == F32 || TYPE == I32) {
        for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
            Word(plus(to, i, 4)).w = word(plus(from, i, 4));
        }
    } else if (TYPE == F16 && (to.x & 3) == 0 && (n & 1) == 0) {
        for (uint i = gl_LocalInvocationID.x * 2; i < n; i += LANES * 2) {
            uint low = float_to_half(read_f32(plus(from, i, 4))), high = float_to_half(read_f32(plus(from, i + 1, 4)));
            Word(plus(to, i, 2)).w = low | high << 16;
        }
    } else {
        for (uint i = gl_LocalInvocationID.x; i < n; i += LANES) {
            write_element(TYPE, plus(to, i, 2), read_f32(plus(from, i, 4)));
        }
    }
}
