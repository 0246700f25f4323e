// The functions of one element, and SCALE and CLAMP.
#version 460

#include "common.glsl"
#include "elements.glsl"
#include "activations.glsl"

layout(constant_id = 1) const uint KIND = 0;

const uint SCALE = 16, CLAMP = 17;

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uvec4 i;
    if (!element(y, i)) {
        return;
    }
    float v = read_f32(address(x, i));
    if (KIND == SCALE) {
        v = number_param(0) * v + number_param(1);
    } else if (KIND == CLAMP) {
        // NaN stays.
        float low = number_param(0), high = number_param(1);
        v = v < low ? low : v > high ? high : v;
    } else {
        v = function(KIND, v);
    }
    write_f32(address(y, i), v);
}
