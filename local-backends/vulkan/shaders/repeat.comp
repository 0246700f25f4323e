// REPEAT: a tensor over and over. Elements have 4 bytes.
#version 460

#include "common.glsl"
#include "elements.glsl"

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uvec4 i;
    if (element(y, i)) {
        Word(address(y, i)).w = word(address(x, i % x.ne));
    }
}
