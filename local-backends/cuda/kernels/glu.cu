// compute: 61
// Gated linear units: an activation of one source times the other.
#include "common.cuh"
#include "elements.cuh"
#include "activations.cuh"
#include "gated.cuh"
#include "blocks.cuh"
#include "quantized.cuh"

KERNEL glu(const Node node) {
    const Tensor &gate = node.t[0], &up = node.t[1], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    float v = gated_unit(node, read_f32(address(gate, place)), read_f32(address(up, place)));
    write_f32(address(y, place), v);
    // Rows are of whole warps then.
    if (node.p[PACKED] != 0) {
        u32 n = y.ne[0];
        quantize_one(node.table + number_of_element() / n * packed_bytes(n), n, place.i[0], v);
    }
}
