// Copies bytes on the device, 16 at a time: the push constants say from where, to where, and how many vectors. A driver's own copies can be
// a quarter as fast.
#version 460

#include "common.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vectors {
    uvec4 v[];
};

// Vectors of an invocation, all read before one is written.
const uint EACH = 2;

void main() {
    uint first = group() * LANES * EACH + gl_LocalInvocationID.x;
    uvec4 v[EACH];
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        v[i] = first + i * LANES < number ? Vectors(node_at).v[first + i * LANES] : uvec4(0);
    }
    [[unroll]] for (uint i = 0; i < EACH; i++) {
        if (first + i * LANES < number) {
            Vectors(fault_at).v[first + i * LANES] = v[i];
        }
    }
}
