// compute: 61
// ADD_ID: to each row the row of its expert.
#include "common.cuh"
#include "elements.cuh"

KERNEL add_id(const Node node) {
    const Tensor &a = node.t[0], &b = node.t[1], &ids = node.t[2], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    int expert = read_i32(address(ids, {{place.i[1], place.i[2], 0, 0}}));
    if (u32(expert) >= b.ne[1]) {
        wrong(node, EXPERT, expert, b.ne[1]);
        return;
    }
    float bias = read_f32(address(b, {{place.i[0], u32(expert), 0, 0}}));
    write_f32(address(y, place), read_f32(address(a, place)) + bias);
}
