// CONCAT: one source behind the other, along a dimension. Elements have 4 bytes.
#version 460

#include "common.glsl"
#include "elements.glsl"

layout(constant_id = 1) const uint DIM = 0;

void main() {
    Tensor a = tensor(0), b = tensor(1), y = tensor(RESULT);
    uvec4 i;
    if (!element(y, i)) {
        return;
    }
    uvec4 from = i;
    bool first = i[DIM] < a.ne[DIM];
    if (!first) {
        from[DIM] -= a.ne[DIM];
    }
    Word(address(y, i)).w = first ? word(address(a, from)) : word(address(b, from));
}
