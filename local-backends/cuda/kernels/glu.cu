// compute: 61
// Gated linear units: an activation of one source times the other.
#include "common.cuh"
#include "elements.cuh"
#include "activations.cuh"
#include "blocks.cuh"
#include "quantized.cuh"

const u32 REGLU = 0, GEGLU = 1, SWIGLU = 2;

INLINE float gated(const Node& node, float gate, float up) {
    u32 kind = node.p[2];
    if (kind == REGLU) {
        return relu(gate) * up;
    }
    if (kind == GEGLU) {
        return gelu(gate) * up;
    }
    if (kind == SWIGLU) {
        return silu(gate) * up;
    }
    float alpha = number_param(node, 0), limit = number_param(node, 1);
    // NaN stays.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * sigmoid(alpha * gate) * (1.0f + up);
}

KERNEL glu(const Node node) {
    const Tensor &gate = node.t[0], &up = node.t[1], &y = node.t[RESULT];
    Place place;
    if (!element(y, place)) {
        return;
    }
    float v = gated(node, read_f32(address(gate, place)), read_f32(address(up, place)));
    write_f32(address(y, place), v);
    // Rows are of whole warps then.
    if (node.p[PACKED] != 0) {
        u32 n = y.ne[0];
        quantize_one(node.table + number_of_element() / n * packed_bytes(n), n, place.i[0], v);
    }
}
