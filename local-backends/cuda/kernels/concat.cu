// compute: 61
// CONCAT: one source behind the other, along a dimension. Elements have 4 bytes.
#include "common.cuh"
#include "elements.cuh"

KERNEL concat(const Node node) {
    const Tensor &a = node.t[0], &b = node.t[1], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    u32 dim = node.p[0];
    // What the first source has of each dimension, where this is behind it.
    u32 cut0 = dim == 0 && place.i[0] >= a.ne[0] ? a.ne[0] : 0, cut1 = dim == 1 && place.i[1] >= a.ne[1] ? a.ne[1] : 0;
    u32 cut2 = dim == 2 && place.i[2] >= a.ne[2] ? a.ne[2] : 0, cut3 = dim == 3 && place.i[3] >= a.ne[3] ? a.ne[3] : 0;
    bool first = (cut0 | cut1 | cut2 | cut3) == 0;
    Place from = {{place.i[0] - cut0, place.i[1] - cut1, place.i[2] - cut2, place.i[3] - cut3}};
    write_word(address(y, place), first ? word(address(a, from)) : word(address(b, from)));
}
