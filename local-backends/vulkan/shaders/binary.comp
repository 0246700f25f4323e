// ADD, SUB, MUL, DIV: the second source is repeated to the first.
#version 460

#include "common.glsl"
#include "elements.glsl"

layout(constant_id = 1) const uint KIND = 0;

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uvec4 i;
    if (!element(y, i)) {
        return;
    }
    float u = read_f32(address(a, i)), v = read_f32(address(b, i % b.ne));
    write_f32(address(y, i), KIND == 0 ? u + v : KIND == 1 ? u - v : KIND == 2 ? u * v : u / v);
}
