// compute: 61
// The functions of one element, and SCALE and CLAMP.
#include "common.cuh"
#include "elements.cuh"
#include "activations.cuh"

const u32 SCALE = 16, CLAMP = 17;

KERNEL unary(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    u32 kind = node.p[2];
    float v = read_f32(address(x, place));
    if (kind == SCALE) {
        v = number_param(node, 0) * v + number_param(node, 1);
    } else if (kind == CLAMP) {
        // NaN stays.
        float low = number_param(node, 0), high = number_param(node, 1);
        v = v < low ? low : v > high ? high : v;
    } else {
        v = function(kind, v);
    }
    write_f32(address(y, place), v);
}
