// compute: 61
// ADD, SUB, MUL, DIV: the second source is repeated to the first.
#include "common.cuh"
#include "elements.cuh"

KERNEL binary(const Node node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    u32 kind = node.p[0];
    float u = read_f32(address(a, place)), v = read_f32(address(b, repeated(b, place)));
    write_f32(address(y, place), kind == 0 ? u + v : kind == 1 ? u - v : kind == 2 ? u * v : u / v);
}
