// ADD_ID: to each row the row of its expert.
#version 460

#include "common.glsl"
#include "elements.glsl"

void main() {
    Tensor a = tensor(0), b = tensor(1), ids = tensor(2), y = tensor(RESULT);
    uvec4 i;
    if (!element(y, i)) {
        return;
    }
    int expert = read_i32(address(ids, uvec4(i.y, i.z, 0, 0)));
    if (uint(expert) >= b.ne.y) {
        wrong(EXPERT, expert, b.ne.y);
        return;
    }
    write_f32(address(y, i), read_f32(address(a, i)) + read_f32(address(b, uvec4(i.x, uint(expert), 0, 0))));
}
