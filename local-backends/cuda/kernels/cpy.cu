// compute: 61
// CPY, CONT and CAST: elements in order of their index, in another type or with other strides.
#include "common.cuh"
#include "elements.cuh"

KERNEL cpy(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    int from_type = node.p[0], to_type = node.p[1];
    u8 *from = address(x, place_of(x, number_of_element())), *to = address(y, place);
    if (from_type != to_type) {
        write_element(to_type, to, read_element(from_type, from));
    } else if (size_of(from_type) == 4) {
        write_word(to, word(from));
    } else {
        *(u16*)to = half_word(from);
    }
}
