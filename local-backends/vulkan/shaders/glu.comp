// Gated linear units: an activation of one source times the other.
#version 460

#include "common.glsl"
#include "elements.glsl"
#include "activations.glsl"

layout(constant_id = 1) const uint KIND = 0;

const uint REGLU = 0, GEGLU = 1, SWIGLU = 2;

float gated(float gate, float up) {
    if (KIND == REGLU) {
        return function(RELU, gate) * up;
    }
    if (KIND == GEGLU) {
        return function(GELU, gate) * up;
    }
    if (KIND == SWIGLU) {
        return function(SILU, gate) * up;
    }
    float alpha = number_param(0), limit = number_param(1);
    // NaN stays.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * sigmoid(alpha * gate) * (1.0 + up);
}

void main() {
    Tensor gate = tensor(0), up = tensor(1), y = tensor(RESULT);
    uvec4 i;
    if (element(y, i)) {
        write_f32(address(y, i), gated(read_f32(address(gate, i)), read_f32(address(up, i))));
    }
}
