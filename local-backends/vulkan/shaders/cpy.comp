// CPY, CONT and CAST: elements in order of their index, in another type or with other strides.
#version 460

#include "common.glsl"
#include "elements.glsl"

layout(constant_id = 1) const uint FROM = F32;
layout(constant_id = 2) const uint TO = F32;

// The place in a tensor of other shape, by the index among all elements.
uvec4 same_index(Tensor of, uint place) {
    uint rows = place / of.ne.x;
    return uvec4(place % of.ne.x, rows % of.ne.y, rows / of.ne.y % of.ne.z, rows / of.ne.y / of.ne.z);
}

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uvec4 i;
    if (!element(y, i)) {
        return;
    }
    uvec2 from = address(x, same_index(x, group() * LANES + gl_LocalInvocationID.x)), to = address(y, i);
    if (FROM == TO) {
        if (FROM == F32 || FROM == I32) {
            Word(to).w = word(from);
        } else {
            write_bits(to, bits16(from), 16);
        }
    } else {
        write_element(TO, to, read_element(FROM, from));
    }
}
