// Gated linear units: an activation of one source times the other.
#version 460

#include "common.glsl"
#include "elements.glsl"
#include "activations.glsl"

layout(constant_id = 1) const uint KIND = 0;

void main() {
    Tensor gate = tensor(0), up = tensor(1), y = tensor(RESULT);
    uvec4 i;
    if (element(y, i)) {
        write_f32(address(y, i), gated(KIND, vec2(number_param(0), number_param(1)), read_f32(address(gate, i)), read_f32(address(up, i))));
    }
}
