// ARGMAX: a workgroup for each row. Of equal elements the first counts; NaN never does.
#version 460

#include "common.glsl"

shared uint indices[LANES];

void main() {
    Tensor x = tensor(0), y = tensor(RESULT);
    uint r = group(), n = x.ne.x, lane = gl_LocalInvocationID.x;
    if (r >= x.ne.y) {
        return;
    }
    float most = minus_infinity();
    uint best = 0;
    for (uint i = lane; i < n; i += LANES) {
        float v = read_f32(plus(row(x, r), i, 4));
        if (v > most) {
            most = v;
            best = i;
        }
    }
    places[lane] = most;
    indices[lane] = best;
    barrier();
    if (lane == 0) {
        for (uint i = 1; i < LANES; i++) {
            if (places[i] > most || places[i] == most && indices[i] < best) {
                most = places[i];
                best = indices[i];
            }
        }
        Word(plus(y.at, r, y.nb.x)).w = best;
    }
}
