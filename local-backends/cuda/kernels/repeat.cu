// compute: 61
// REPEAT: a tensor over and over. Elements have 4 bytes.
#include "common.cuh"
#include "elements.cuh"

KERNEL repeat(const Node node) {
    const Tensor &x = node.t[0], &y = node.t[RESULT];
    Place place;
    if (element(y, place)) {
        write_word(address(y, place), word(address(x, repeated(x, place))));
    }
}
