// The second pass of FLASH_ATTN_EXT where keys were divided: a workgroup for a query and a head, which puts the parts together.
#version 460

#include "common.glsl"

const uint MOST_PARTS = 32;

shared float largest[MOST_PARTS], totals[MOST_PARTS], weights[MOST_PARTS];

void main() {
    Tensor q = tensor(0), v = tensor(2), y = tensor(RESULT);
    uint g = group(), head = g % q.ne.z, i = g / q.ne.z, dv = v.ne.x, length = (dv + 5) / 4 * 4, parts = param(4);
    if (i >= q.ne.y) {
        return;
    }
    uvec2 from = plus(constants(), g * parts * length, 4), to = row(y, head, i, 0);
    // Once, each by one invocation; loops over shared memory follow. lavapipe 26 reads once more than a loop says where all read the same, which there is harmless.
    for (uint p = gl_LocalInvocationID.x; p < parts; p += LANES) {
        largest[p] = read_f32(plus(from, p * length + dv, 4));
        totals[p] = read_f32(plus(from, p * length + dv + 1, 4));
    }
    barrier();
    float most = minus_infinity(), sum = 0.0;
    for (uint p = 0; p < parts; p++) {
        most = max(most, largest[p]);
    }
    for (uint p = gl_LocalInvocationID.x; p < parts; p += LANES) {
        weights[p] = largest[p] == minus_infinity() ? 0.0 : exp(largest[p] - most);
    }
    barrier();
    for (uint p = 0; p < parts; p++) {
        sum += weights[p] * totals[p];
    }
    for (uint e = gl_LocalInvocationID.x; e < dv; e += LANES) {
        float result = 0.0;
        for (uint p = 0; p < parts; p++) {
            if (weights[p] != 0.0) {
                result += weights[p] * read_f32(plus(from, p * length + e, 4));
            }
        }
        write_f32(plus(to, e, 4), sum > 0.0 ? result / sum : 0.0);
    }
}
