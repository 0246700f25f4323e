// TOP_K of long rows: a workgroup for each, which finds the few largest and then sorts them.
#version 460

#include "common.glsl"
// NaN comes above everything.
#define CODE_OF_NAN 0
#include "select.glsl"

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uint r = group();
    if (r >= x.ne.y * x.ne.z * x.ne.w) {
        return;
    }
    elements = row(x, r);
    length = x.ne.x;
    keep_largest(y.ne.x);
    uvec2 to = row(y, r);
    for (uint i = gl_LocalInvocationID.x; i < list_length; i += LANES) {
        uvec2 mine = element(i);
        uint place = 0;
        for (uint j = 0; j < list_length; j++) {
            uvec2 other = element(j);
            place += other.x < mine.x || other.x == mine.x && other.y < mine.y ? 1 : 0;
        }
        // Another queue of the client may have written the row meanwhile.
        if (place < y.ne.x) {
            Word(plus(to, place, 4)).w = mine.y;
        }
    }
}
